"""Triton's paged attention, in the interpreter, against the dense computation. Shapes are small: it is slow."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitney.kernels.triton.attention import TritonAttention
from jitney.kernels.triton.split_decode import MAX_SPLITS, MIN_SPLIT

from ..paged_case import SCALE, Case, dense, make_case

MIXED = [(300, 1), (0, 21), (45, 19), (6, 1), (0, 1)]


def run(case: Case, **options: object) -> torch.Tensor:
    case.write()
    step = TritonAttention().begin(case.batch, case.key_cache.shape[1])
    return step.attend(case.query, case.key_cache, case.value_cache, SCALE, **options)  # type: ignore[arg-type]


def assert_exact(
    case: Case, window: int | None = None, softcap: float | None = None, sinks: torch.Tensor | None = None
) -> None:
    """Equal to rounding in float32."""
    got = run(case, sliding_window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(got, dense(case, window, softcap, sinks), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_size(head_dim: int) -> None:
    assert_exact(make_case([(40, 1), (10, 9)], 16, 2, 1, head_dim, head_dim))


def test_values_may_have_another_size_than_keys() -> None:
    assert_exact(make_case([(300, 1), (10, 9)], 16, 2, 1, 24, 12))


@pytest.mark.parametrize("group", range(1, 9))
def test_every_number_of_query_heads_per_kv_head(group: int) -> None:
    assert_exact(make_case([(20, 1), (3, 18)], 16, 2 * group, 2))


def test_more_query_heads_per_kv_head_than_a_tile_has_slots() -> None:
    assert_exact(make_case([(20, 1), (3, 4)], 16, 35, 1))


@pytest.mark.parametrize("block_size", [1, 16, 32, 256])
def test_every_block_size(block_size: int) -> None:
    assert_exact(make_case(MIXED, block_size))


@pytest.mark.parametrize("window", [1, 2, 17, 128, 299, 300, 301, 2000])
def test_sliding_windows(window: int) -> None:
    assert_exact(make_case(MIXED, 16), window)


def test_nothing_outside_the_window_is_read() -> None:
    case = make_case([(299, 1), (70, 5)], 1)
    for row, gone in ((0, 300 - 20), (1, 70 - 19)):
        blocks = case.batch.block_tables[row, :gone].long()
        case.key_cache[blocks], case.value_cache[blocks] = float("nan"), float("nan")
    assert_exact(case, window=20)


@pytest.mark.parametrize("softcap", [0.5, 20.0])
def test_softcap(softcap: float) -> None:
    assert_exact(make_case(MIXED, 16), softcap=softcap)


def test_sinks_count_once_however_many_splits() -> None:
    sinks = torch.linspace(-2, 8, 4)
    assert_exact(make_case([*MIXED, (2 * MIN_SPLIT.value, 1)], 16), sinks=sinks)
    assert_exact(make_case(MIXED, 16), window=30, sinks=sinks)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, softcap: float | None) -> None:
    case = make_case([(600, 1), (60, 30)], 16, head_dim=16, value_dim=16, dtype=dtype)
    got = run(case, softcap=softcap)
    assert got.dtype is dtype
    torch.testing.assert_close(got.float(), dense(case, softcap=softcap), rtol=2e-2, atol=6e-3)


def test_rows_without_tokens_and_empty_steps() -> None:
    assert_exact(make_case([(7, 0), (20, 1), (4, 0), (0, 3), (9, 0)], 16))
    assert run(make_case([(7, 0)], 16)).shape == (0, 4, 8)


def test_a_padding_row_with_nothing_behind_it_gives_no_nan() -> None:
    case = make_case([(20, 1), (8, 1)], 16)
    case.batch.context_lens[1] = 0
    got = run(case)
    torch.testing.assert_close(got[0], dense(case)[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(got[1], torch.zeros_like(got[1]))


split = MIN_SPLIT.value
LONG = [
    split - 1,
    split,
    split + 1,
    2 * split,
    5 * split - 7,
    MAX_SPLITS.value * split - 1,
    MAX_SPLITS.value * split + 1,
]


@pytest.mark.parametrize("length", LONG)
def test_long_rows_are_split_and_merged(length: int) -> None:
    assert_exact(make_case([(length - 1, 1), (3, 1)], 256, 2, 2))
    assert_exact(make_case([(length - 1, 1), (3, 1)], 256, 2, 2), window=split + 40)


def test_a_query_laid_out_head_by_head_is_read_right() -> None:
    case = make_case(MIXED, 16)
    case.query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert_exact(case)


def alone(case: Case, row: int) -> Case:
    """The same row as the only one of a batch over the same cache."""
    batch, first, last = case.batch, *case.batch.host_query_starts[row : row + 2]
    return replace(
        case,
        query=case.query[first:last],
        batch=replace(
            batch,
            block_tables=batch.block_tables[row : row + 1],
            query_starts=torch.tensor([0, last - first], dtype=torch.int32),
            context_lens=batch.context_lens[row : row + 1],
            kv_index=batch.kv_index[first:last],
            max_query_len=last - first,
            max_context_len=batch.host_context_lens[row],
        ),
        new_keys=case.new_keys[first:last],
        new_values=case.new_values[first:last],
    )


@pytest.mark.parametrize("window", [None, 40])
def test_a_row_is_the_same_bits_alone_and_in_company(window: int | None) -> None:
    rows = [(9, 1), (700, 1), (0, 37), (5, 1), (130, 21), (2000, 1)]
    case = make_case(rows, 16)
    together = run(case, sliding_window=window)
    for row in range(len(rows)):
        first, last = case.batch.host_query_starts[row : row + 2]
        assert torch.equal(run(alone(case, row), sliding_window=window), together[first:last]), rows[row]


def test_larger_bounds_change_no_bit_and_no_host_list_is_read() -> None:
    """What a CUDA graph replays: captured with the largest lengths, without host values."""
    case = make_case([(9, 1), (700, 1), (300, 1)], 16)
    expected = run(case)
    case.batch = replace(
        case.batch, host_query_starts=[], host_context_lens=[], max_query_len=64, max_context_len=100_000
    )
    assert torch.equal(run(case), expected)


row = st.one_of(
    st.tuples(st.integers(0, 60), st.just(1)),
    st.tuples(st.integers(200, 600), st.just(1)),
    st.tuples(st.integers(0, 60), st.integers(0, 40)),
)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(row, min_size=1, max_size=4),
    block_size=st.sampled_from([1, 3, 16, 256]),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (5, 1)]),
    dims=st.sampled_from([(8, 8), (20, 20), (24, 12)]),
    window=st.sampled_from([None, 1, 7, 50, 512]),
    softcap=st.sampled_from([None, 20.0]),
    with_sinks=st.booleans(),
)
def test_equals_dense_attention_for_any_ragged_batch(
    rows: list[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
) -> None:
    case = make_case(rows, block_size, *heads, *dims)
    assert_exact(case, window, softcap, torch.linspace(-2, 2, heads[0]) if with_sinks else None)
