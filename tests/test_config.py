from typing import Any

import pytest

from jitney.config import BatchingPolicy, EngineConfig
from jitney.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "int3"),
        ("device", "tpu"),
        ("batching_policy", "magic"),
        ("scheduling_policy", "random"),
        ("max_num_seqs", 0),
        ("max_num_seqs", 2.0),
        ("max_num_batched_tokens", "many"),
        ("block_size", True),
        ("max_model_len", -1),
        ("num_kv_blocks", 0),
        ("prefill_chunk_size", 0),
        ("seed", -1),
        ("dynamic_batching_window_s", -0.1),
        ("dynamic_batching_window_s", float("nan")),
        ("async_scheduling", "on"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        EngineConfig(**{field: value})


def test_every_seat_needs_a_token_of_the_budget() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens=8 is below max_num_seqs=9"):
        EngineConfig(max_num_batched_tokens=8, max_num_seqs=9)


def test_a_chunk_size_without_chunking_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefill_chunk_size"):
        EngineConfig(enable_chunked_prefill=False, prefill_chunk_size=4)


@pytest.mark.parametrize("policy", ["static", "dynamic", "sequential"])
def test_swap_space_is_refused_where_nothing_is_ever_preempted(policy: BatchingPolicy) -> None:
    EngineConfig(swap_space=1.0)
    with pytest.raises(ConfigError, match=f"swap_space=1.0 has no meaning with batching_policy={policy}"):
        EngineConfig(swap_space=1.0, batching_policy=policy)


def test_depth_follows_async_scheduling() -> None:
    assert EngineConfig(async_scheduling=True).depth == 2 and EngineConfig(async_scheduling=False).depth == 1


@pytest.mark.parametrize("value", ["two", 0, -1, True, 1.5, 1025, 2**32 + 1])
def test_cpu_threads_out_of_range_or_of_another_type_are_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match="cpu_threads"):
        EngineConfig(cpu_threads=value)  # type: ignore[arg-type]
