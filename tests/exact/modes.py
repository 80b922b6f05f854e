"""The ways to run the engine that must not change a token."""

from typing import Any

TINY_POOL = "tiny pool"
"""Marks a mode whose KV cache holds little more than the longest request, so that preemption never stops."""

MODES: dict[str, dict[str, Any]] = {
    "async": {},
    "sync": {"async_scheduling": False},
    "static": {"batching_policy": "static"},
    "static sync": {"batching_policy": "static", "async_scheduling": False},
    "dynamic": {"batching_policy": "dynamic"},
    "dynamic sync": {"batching_policy": "dynamic", "async_scheduling": False},
    "sequential": {"batching_policy": "sequential"},
    "sequential sync": {"batching_policy": "sequential", "async_scheduling": False},
    "chunks of 1": {"prefill_chunk_size": 1},
    "chunks of 7": {"prefill_chunk_size": 7},
    "chunks of 64, sync": {"prefill_chunk_size": 64, "async_scheduling": False},
    "whole prompts": {"enable_chunked_prefill": False},
    "blocks of 1": {"block_size": 1},
    "blocks of 256": {"block_size": 256},
    "no prefix cache": {"enable_prefix_caching": False},
    "tiny pool": {TINY_POOL: True},
    "tiny pool, sync, blocks of 1": {TINY_POOL: True, "block_size": 1, "async_scheduling": False},
    "tiny pool, chunks of 7": {TINY_POOL: True, "prefill_chunk_size": 7},
}


COMBINED: dict[str, dict[str, Any]] = {
    "async, chunks of 64": {"prefill_chunk_size": 64},
    "sync, chunks of 7, blocks of 1": {"async_scheduling": False, "prefill_chunk_size": 7, "block_size": 1},
    "static, whole prompts, blocks of 256": {
        "batching_policy": "static",
        "enable_chunked_prefill": False,
        "block_size": 256,
    },
    "static sync, chunks of 1, no prefix cache": {
        "batching_policy": "static",
        "async_scheduling": False,
        "prefill_chunk_size": 1,
        "enable_prefix_caching": False,
    },
    "dynamic, blocks of 1": {"batching_policy": "dynamic", "block_size": 1},
    "dynamic sync, blocks of 256, no prefix cache": {
        "batching_policy": "dynamic",
        "async_scheduling": False,
        "block_size": 256,
        "enable_prefix_caching": False,
    },
    "sequential, chunks of 7": {"batching_policy": "sequential", "prefill_chunk_size": 7},
    "sequential sync, whole prompts": {
        "batching_policy": "sequential",
        "async_scheduling": False,
        "enable_chunked_prefill": False,
    },
    "tiny pool, chunks of 7": {TINY_POOL: True, "prefill_chunk_size": 7},
    "tiny pool, sync, blocks of 1": {TINY_POOL: True, "block_size": 1, "async_scheduling": False},
}
"""Every value of every setting at least once, in few runs: for the real model, where a run takes minutes."""


def settings(mode: str, longest: int, num_seqs: int) -> dict[str, Any]:
    """EngineConfig settings of a mode of either table. `longest`: tokens of the longest prompt + output."""
    chosen = {"block_size": 16, "max_num_seqs": num_seqs, "max_num_batched_tokens": 512} | (MODES | COMBINED)[mode]
    if not chosen.get("enable_chunked_prefill", True):
        chosen["max_num_batched_tokens"] = longest + num_seqs
    blocks = -(-longest // chosen["block_size"])
    if chosen.pop(TINY_POOL, False):
        return chosen | {"max_model_len": longest, "num_kv_blocks": blocks + blocks // 4 + 1}
    return chosen | {"max_model_len": longest, "num_kv_blocks": blocks * num_seqs}
