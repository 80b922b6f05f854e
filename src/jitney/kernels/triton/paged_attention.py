"""Triton kernel for attention of ragged query tiles over a paged KV cache: prompts, chunks of prompts, drafts.

What is computed for a row depends on that row alone, never on its batch mates. The grid depends on shapes only, so that
a CUDA graph can hold it: programs without work leave at once. Rows with one query belong to `split_decode.py`. Names as
in `key_tiles.py`. Knows tensors; nothing of backends, steps and launch shapes (`attention.py`).
"""

import triton
import triton.language as tl

from jitney.kernels.triton.key_tiles import LOG2E, visit_keys


@triton.jit
def _row_of_tile(query_starts, num_rows, tile, BLOCK_Q: tl.constexpr):
    """The row that owns a tile: row i's tiles are numbered from query_starts[i] // BLOCK_Q + i, so all of them fit."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        is_before = tl.load(query_starts + middle) // BLOCK_Q + middle <= tile
        low = tl.where(is_before, middle + 1, low)
        high = tl.where(is_before, high, middle)
    return low - 1


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["query_starts", "context_lens", "block_tables"],  # they may start anywhere
)
def ragged_kernel(
    output,
    query,
    key_cache,
    value_cache,
    sinks,
    block_tables,
    query_starts,
    context_lens,
    scale,
    num_rows,
    table_stride,
    HAS_SINKS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    VALUE_DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Rows with several queries: grid (T // BLOCK_Q + R, NUM_KV_HEADS), BLOCK_Q = BLOCK_M // GROUP queries a tile.

    Rows with one query are left to `decode_kernel`. query [T, heads, HEAD_DIM] and output [T, heads, VALUE_DIM] are
    contiguous.
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a row's last tiles see the most keys: start them first
    kv_head = tl.program_id(1)
    row = _row_of_tile(query_starts, num_rows, tile, BLOCK_Q)
    row_start = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - row_start
    first_query = (tile - row_start // BLOCK_Q - row) * BLOCK_Q
    if (query_len == 1) | (first_query >= query_len):
        return
    context_len = tl.load(context_lens + row)
    block_table = block_tables + row.to(tl.int64) * table_stride

    slots = tl.arange(0, BLOCK_M)
    queries = first_query + slots // GROUP
    heads = kv_head * GROUP + slots % GROUP
    is_query = (slots < BLOCK_Q * GROUP) & (queries < query_len)
    places = (row_start + queries).to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads
    dims = tl.arange(0, HEAD_DIM_PAD)
    tile_query = tl.load(
        query + places[:, None] * HEAD_DIM + dims[None, :],
        mask=is_query[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    positions = context_len - query_len + queries

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        peak = tl.load(sinks + heads, mask=is_query, other=0.0).to(tl.float32) * LOG2E
        total = tl.full([BLOCK_M], 1.0, tl.float32)
    summed = tl.zeros([BLOCK_M, VALUE_DIM_PAD], tl.float32)
    first_position = context_len - query_len + first_query
    stop = tl.minimum(first_position + BLOCK_Q, context_len)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(first_position - WINDOW + 1, 0)
    else:
        all_visible = first_position // BLOCK_N * BLOCK_N
        peak, total, summed = visit_keys(
            peak, total, summed, tile_query, positions, first, all_visible, key_cache, value_cache, block_table,
            kv_head, scale, False, WINDOW, SOFTCAP, NUM_KV_HEADS, HEAD_DIM, VALUE_DIM, HEAD_DIM_PAD, VALUE_DIM_PAD,
            BLOCK_SIZE, BLOCK_N, WIDEN,
        )  # fmt: skip
        first = all_visible
    peak, total, summed = visit_keys(
        peak, total, summed, tile_query, positions, first, stop, key_cache, value_cache, block_table,
        kv_head, scale, True, WINDOW, SOFTCAP, NUM_KV_HEADS, HEAD_DIM, VALUE_DIM, HEAD_DIM_PAD, VALUE_DIM_PAD,
        BLOCK_SIZE, BLOCK_N, WIDEN,
    )  # fmt: skip
    value_dims = tl.arange(0, VALUE_DIM_PAD)
    result = summed / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(
        output + places[:, None] * VALUE_DIM + value_dims[None, :],
        result.to(output.dtype.element_ty),
        mask=is_query[:, None] & (value_dims < VALUE_DIM)[None, :],
    )
