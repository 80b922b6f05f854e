"""Prefill: prompt tokens per second, and how much of the device's matrix rate that is, for several chunk sizes.

One long prompt at a time, cut into chunks as chunked prefill does it, so that each chunk but the first also attends to
those before it. Operations are counted from the shape: two for each weight of a matrix and token, and the causal half
of attention; the output layer counts for the one token that is sampled.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu.limits import limit
from gpu.running import Part
from gpu.served import Bench
from jitney.engine.limits import make_requests
from jitney.engine.loop import Engine
from jitney.sampling_params import SamplingParams


def measure(bench: Bench, part: Part) -> None:
    scale = bench.scale
    flop = prefill_flop(scale.shape, scale.prefill_len)
    rate = limit(part, "matmul_flop_per_s")
    for chunk in sorted(scale.prefill_chunks, reverse=True):
        if part.left_s <= 0:
            part.note(f"no time for chunks of {chunk} and less")
            return
        engine = bench.served.engine(enable_prefix_caching=False, prefill_chunk_size=chunk, max_num_seqs=1)
        seconds = _seconds(engine, scale.prefill_len, scale.repeats, part)
        median = statistics.median(seconds)
        part.total(
            **{
                "prompt": scale.prefill_len,
                "chunk": chunk,
                "runs": len(seconds),
                "seconds": round(median, 4),
                "tokens/s": round(scale.prefill_len / median),
                "TFLOP/s": round(flop / median / 1e12, 3),
                "of matrix rate %": None if rate is None else round(100 * flop / median / rate, 1),
            }
        )


def _seconds(engine: Engine, length: int, repeats: int, part: Part) -> Sequence[float]:
    """Seconds from the start of the first chunk on the device to the end of the last; one more run to warm up."""
    random = np.random.default_rng(length)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    seconds = []
    for run in range(repeats + 1):
        prompt = random.integers(3, engine.limits.vocab_size, length, dtype=np.int32)
        first = engine.records.num_steps
        engine.add(*make_requests(f"prefill {run}", prompt, params, engine.limits, engine_seed=0))
        engine.run_until_idle()
        records = engine.records.since(first)
        seconds.append(float(records["device_end"][-1] - records["device_start"][0]))
        if part.left_s <= 0:
            break
    return seconds[1:] or seconds


def prefill_flop(shape: dict[str, Any], length: int) -> float:
    """Floating-point operations to prefill one prompt of `length` tokens and sample one token."""
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    head_dim = shape.get("head_dim", hidden // heads)
    attention = hidden * head_dim * (2 * heads + 2 * shape["num_key_value_heads"])
    weights = shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
    scores = shape["num_hidden_layers"] * 2 * heads * head_dim * length * (length + 1)
    return float(2 * weights * length + scores + 2 * hidden * shape["vocab_size"])
