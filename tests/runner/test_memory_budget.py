import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jitney.config import EngineConfig
from jitney.errors import ConfigError
from jitney.models.base import LayerSpec, ModelSpec
from jitney.runner.memory_budget import MemoryProfile, plan_memory

GIB = 2**30
SPEC = ModelSpec("toy", "Toy", 1000, 8192, torch.bfloat16, (LayerSpec(8, 128),) * 4, 0)


def profile(
    total: int = 80 * GIB, weights: int = 16 * GIB, activations: int = GIB, decode: int = GIB // 8, other: int = GIB
) -> MemoryProfile:
    return MemoryProfile(total=total, weights=weights, activations=activations, decode_activations=decode, other=other)


SIZES = st.integers(0, 100 * GIB)


@given(
    st.builds(profile, total=st.integers(1, 200 * GIB), weights=SIZES, activations=SIZES, decode=SIZES, other=SIZES),
    st.floats(0.01, 1.0),
    st.integers(1, 64),
    st.none() | st.integers(1, 8192),
    st.none() | st.integers(1, 10**6),
    st.integers(0, 50),
)
def test_a_plan_never_exceeds_its_share_and_holds_one_request_or_is_refused_with_the_numbers(
    measured: MemoryProfile,
    utilization: float,
    block_size: int,
    max_model_len: int | None,
    num_kv_blocks: int | None,
    num_graphs: int,
) -> None:
    config = EngineConfig(
        gpu_memory_utilization=utilization,
        block_size=block_size,
        max_model_len=max_model_len,
        num_kv_blocks=num_kv_blocks,
    )
    try:
        budget = plan_memory(measured, SPEC, config, num_graphs)
    except ConfigError as error:
        assert "num_kv_blocks" in str(error) or "gpu_memory_utilization=" in str(error)
        return
    fixed = measured.weights + measured.activations + measured.other + budget.graphs + budget.slack
    assert fixed + budget.kv_cache <= measured.total * utilization
    assert budget.max_model_len <= min(budget.num_kv_tokens, SPEC.max_position_embeddings)
    assert budget.max_model_len == max_model_len or max_model_len is None
    assert budget.num_full_requests >= 1
    if num_kv_blocks is None:
        assert fixed + budget.kv_cache + budget.block_bytes > measured.total * utilization - 1, "all of it is used"
    else:
        assert budget.num_kv_blocks == num_kv_blocks


def test_the_longest_sequence_is_the_models_where_memory_allows_and_what_is_there_where_not() -> None:
    assert plan_memory(profile(), SPEC, EngineConfig(), 0).max_model_len == 8192
    small = plan_memory(profile(weights=int(69.85 * GIB)), SPEC, EngineConfig(), 0)
    assert small.max_model_len == small.num_kv_tokens < 8192


def test_recorded_steps_are_paid_for_and_none_costs_nothing() -> None:
    eager, recorded = (plan_memory(profile(), SPEC, EngineConfig(), graphs) for graphs in (0, 11))
    assert eager.graphs == 0
    assert recorded.graphs > GIB // 8 + 64 * 1000 * 4
    assert recorded.num_kv_tokens < eager.num_kv_tokens


def test_the_summary_is_one_line_with_every_share() -> None:
    budget = plan_memory(profile(), SPEC, EngineConfig(max_model_len=4096), 0)
    line = budget.summary()
    assert "\n" not in line
    for words in (
        "80.00 GiB x gpu_memory_utilization=0.9 = 72.00 GiB", "weights 16.00 GiB", "activations 1.00 GiB",
        "other processes 1.00 GiB", f"= {budget.num_kv_tokens:,} tokens",
        f"{budget.num_kv_tokens / 4096:.1f} requests of max_model_len=4,096",
    ):  # fmt: skip
        assert words in line


TIGHT = profile(total=24 * GIB, weights=20 * GIB, activations=15 * GIB // 16, other=GIB // 4)


def refusal(num_graphs: int = 0, **settings: Any) -> str:
    with pytest.raises(ConfigError) as error:
        plan_memory(TIGHT, SPEC, EngineConfig(dtype="bfloat16", **settings), num_graphs)
    return str(error.value)


def test_too_little_for_one_request_names_every_number_and_knob() -> None:
    message = refusal(max_model_len=8192, gpu_memory_utilization=0.89)
    for words in (
        "one request of max_model_len=8,192 tokens and a scratch block take 0.13 GiB", "0.03 GiB are left",
        "24.00 GiB x gpu_memory_utilization=0.89 = 21.36 GiB", "weights 20.00 GiB", "activations 0.94 GiB",
        "other processes 0.25 GiB", "graphs 0.00 GiB", "slack 0.14 GiB", "raise gpu_memory_utilization to",
        "lower max_model_len to", "max_num_batched_tokens (now 1,024)", "dtype (now bfloat16)",
    ):  # fmt: skip
        assert words in message


@pytest.mark.parametrize("num_graphs", [0, 11])
def test_the_advice_of_a_refusal_is_just_enough(num_graphs: int) -> None:
    message = refusal(num_graphs, max_model_len=8192, gpu_memory_utilization=0.89)
    share = re.search(r"gpu_memory_utilization to ([\d.]+) or more", message)
    assert share
    enough = float(share[1])
    assert plan_memory(TIGHT, SPEC, EngineConfig(max_model_len=8192, gpu_memory_utilization=enough), num_graphs)
    refusal(num_graphs, max_model_len=8192, gpu_memory_utilization=enough - 0.01)


def test_the_length_that_a_refusal_advises_fits_and_the_next_one_does_not() -> None:
    shorter = re.search(r"max_model_len to ([\d,]+) or less", refusal(max_model_len=8192, gpu_memory_utilization=0.89))
    assert shorter
    length = int(shorter[1].replace(",", ""))
    assert plan_memory(TIGHT, SPEC, EngineConfig(max_model_len=length, gpu_memory_utilization=0.89), 0)
    refusal(max_model_len=length + 1, gpu_memory_utilization=0.89)


def test_where_not_even_a_block_fits_no_shorter_sequence_is_advised() -> None:
    with pytest.raises(ConfigError) as error:
        plan_memory(profile(total=17 * GIB), SPEC, EngineConfig(), 0)
    message = str(error.value)
    assert "one KV block and a scratch block" in message and "0.00 GiB are left" in message
    assert "lower max_model_len" not in message and "raise gpu_memory_utilization" not in message


def test_given_blocks_must_hold_one_request_and_fit() -> None:
    with pytest.raises(ConfigError, match=r"num_kv_blocks=3 .* raise num_kv_blocks to 4"):
        plan_memory(profile(), SPEC, EngineConfig(num_kv_blocks=3, max_model_len=64), 0)
    fits = plan_memory(profile(), SPEC, EngineConfig(), 0).num_kv_blocks
    assert plan_memory(profile(), SPEC, EngineConfig(num_kv_blocks=fits), 0).num_kv_blocks == fits
    with pytest.raises(ConfigError, match=f"lower num_kv_blocks to {fits} or less"):
        plan_memory(profile(), SPEC, EngineConfig(num_kv_blocks=fits + 1), 0)


def test_what_swapping_stages_on_the_device_is_not_given_to_the_cache() -> None:
    without, with_swap, little = (
        plan_memory(profile(), SPEC, EngineConfig(swap_space=gib), 0) for gib in (0.0, 4.0, 1 / 1024)
    )
    assert with_swap.slack - without.slack == 64 * 2**20
    assert little.slack - without.slack == 2 * 2**20
    assert with_swap.kv_cache < little.kv_cache < without.kv_cache
