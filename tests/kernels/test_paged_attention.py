"""The torch reference against a dense textbook computation, over random ragged batches."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.kernels.paged_attention import paged_attention
from jitney.kernels.read_plan import KEY_TILE, plan_reads

from .paged_case import SCALE, Case, dense, make_case


def run(case: Case, **options: object) -> torch.Tensor:
    case.write()
    return paged_attention(case.query, case.key_cache, case.value_cache, case.batch, SCALE, **options)  # type: ignore[arg-type]


row = st.one_of(
    st.tuples(st.integers(0, 40), st.just(1)),
    st.tuples(st.just(0), st.integers(1, 600)),
    st.tuples(st.integers(0, 40), st.integers(1, 30)),
    st.tuples(st.integers(450, 1100), st.integers(1, 3)),
    st.tuples(st.integers(0, 600), st.integers(100, 300)),
)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(row, min_size=1, max_size=5),
    block_size=st.sampled_from([1, 3, 16, 256]),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (5, 1)]),
    dims=st.sampled_from([(8, 8), (5, 5), (12, 4)]),
    scattered=st.booleans(),
    window=st.sampled_from([None, 1, 2, 7, 130, 512, 2000]),
    softcap=st.sampled_from([None, 0.5, 20.0]),
    with_sinks=st.booleans(),
)
def test_equals_dense_attention_for_any_ragged_batch(
    rows: list[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    scattered: bool,
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
) -> None:
    case = make_case(rows, block_size, *heads, *dims, scattered=scattered)
    sinks = torch.linspace(-2, 2, heads[0]) if with_sinks else None
    got = run(case, sliding_window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(got, dense(case, window, softcap, sinks), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [6, 7, 8, 50, 300, 700])
def test_a_prompt_longer_than_the_window_is_windowed(length: int) -> None:
    case = make_case([(0, length)], block_size=16)
    torch.testing.assert_close(run(case, sliding_window=7), dense(case, 7), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("past", [255, 256, 257, 768])
def test_window_edges_are_exact_in_decode(past: int) -> None:
    case = make_case([(past, 1)], block_size=16)
    torch.testing.assert_close(run(case, sliding_window=256), dense(case, 256), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype, softcap: float | None) -> None:
    case = make_case([(1500, 1), (700, 40), (0, 90)], block_size=16, dtype=dtype)
    got = run(case, softcap=softcap)
    assert got.dtype is dtype
    torch.testing.assert_close(got.float(), dense(case, softcap=softcap), rtol=2e-2, atol=4e-3)


def test_result_does_not_depend_on_where_blocks_lie_or_on_batch_mates() -> None:
    rows = [(700, 1), (0, 33), (90, 150)]
    scattered, neighbours = make_case(rows, 16), make_case(rows, 16, scattered=False)
    neighbours.query, neighbours.new_keys = scattered.query, scattered.new_keys
    neighbours.new_values = scattered.new_values
    for i in range(len(rows)):
        places = neighbours.batch.block_tables[i, : -(-sum(rows[i]) // 16)].long()
        flat = (places[:, None] * 16 + torch.arange(16)).flatten()[: sum(rows[i])]
        neighbours.key_cache.view(-1, 2, 8)[flat] = scattered.keys[i]
        neighbours.value_cache.view(-1, 2, 8)[flat] = scattered.values[i]
    assert torch.equal(run(scattered), run(neighbours))


def test_blocks_outside_the_window_are_never_read() -> None:
    case = make_case([(1000, 1)], block_size=16)
    for tile in plan_reads(case.batch, 16, sliding_window=40):
        assert min(keys.start for keys in tile.keys) == 1000 - 39


def test_neighbouring_blocks_are_read_in_place_and_scattered_ones_in_bounded_tiles() -> None:
    neighbours = make_case([(3000, 1)], block_size=16, scattered=False)
    assert all(isinstance(keys.blocks, slice) for keys in plan_reads(neighbours.batch, 16)[0].keys)
    scattered = make_case([(3000, 1)], block_size=16)
    tiles = plan_reads(scattered.batch, 16)[0].keys
    assert any(isinstance(keys.blocks, torch.Tensor) for keys in tiles)
    assert all(len(keys.blocks) * 16 <= KEY_TILE for keys in tiles if isinstance(keys.blocks, torch.Tensor))


def test_the_host_lists_may_be_missing() -> None:
    case = make_case([(20, 1), (0, 5)], block_size=4)
    expected = run(case)
    case.batch = replace(case.batch, host_query_starts=[], host_context_lens=[])
    assert torch.equal(run(case), expected)
