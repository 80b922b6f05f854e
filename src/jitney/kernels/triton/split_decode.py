"""Triton kernels for rows with one query over a paged KV cache: keys cut into splits, then merged.

Flash-Decoding (Dao et al. 2023), with a difference: how a row's keys are cut depends on its own context length only,
never on the batch, so its result is the same bits alone and in any company. Grids depend on shapes and bounds only, so
that a CUDA graph can hold them: programs without work leave at once. Names as in `key_tiles.py`.
"""

import triton
import triton.language as tl

from jitney.kernels.triton.key_tiles import LOG2E, visit_keys

MIN_SPLIT = tl.constexpr(256)
"""Keys that are worth a program of their own: 128 KiB of K and V at head size 128 in half precision."""
MAX_SPLITS = tl.constexpr(16)
"""Bounds the partial results. 16 splits of 8 KV heads fill the multiprocessors of one H200 with a single row."""
_SPLIT_STEP = tl.constexpr(128)
"""Splits are multiples of every key tile's size."""
_UNALIGNED = ["partial_peak", "partial_total", "query_starts", "context_lens", "block_tables"]
"""May start anywhere: a kernel compiled anew for another alignment would hold up a step in the middle of traffic."""


@triton.jit
def _split_length(num_keys):
    """Keys in each split of a row that sees `num_keys`: a function of the row alone, at most MAX_SPLITS of them."""
    even = tl.cdiv(tl.cdiv(num_keys, MAX_SPLITS), _SPLIT_STEP) * _SPLIT_STEP
    return tl.maximum(even, MIN_SPLIT)


@triton.jit
def _seen_keys(context_len, WINDOW: tl.constexpr):
    if WINDOW > 0:
        return tl.minimum(context_len, WINDOW)
    return context_len


@triton.jit(do_not_specialize=["split_stride"], do_not_specialize_on_alignment=_UNALIGNED)
def decode_kernel(
    output,
    partial,
    partial_peak,
    partial_total,
    query,
    key_cache,
    value_cache,
    sinks,
    block_tables,
    query_starts,
    context_lens,
    scale,
    split_stride,
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
    """One split of the keys of a row with one query: grid (NUM_KV_HEADS, splits, R).

    A row with a single split writes its output; others write [R, heads, splits] partial results for `merge_kernel`:
    partial [.., VALUE_DIM] unnormalised, partial_peak and partial_total, all float32.
    """
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2)
    token = tl.load(query_starts + row)
    if tl.load(query_starts + row + 1) - token != 1:
        return
    context_len = tl.load(context_lens + row)
    num_keys = _seen_keys(context_len, WINDOW)
    split_length = _split_length(num_keys)
    first = context_len - num_keys + split * split_length
    if (first >= context_len) & (split > 0):
        return
    stop = tl.minimum(first + split_length, context_len)
    block_table = block_tables + row.to(tl.int64) * table_stride

    slots = tl.arange(0, BLOCK_M)
    heads = kv_head * GROUP + slots
    is_head = slots < GROUP
    places = token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads
    dims = tl.arange(0, HEAD_DIM_PAD)
    row_query = tl.load(
        query + places[:, None] * HEAD_DIM + dims[None, :],
        mask=is_head[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # counted once, in the first split
        sink = tl.load(sinks + heads, mask=is_head, other=0.0).to(tl.float32) * LOG2E
        peak = tl.where(split == 0, sink, peak)
        total = tl.where(split == 0, 1.0, total)
    summed = tl.zeros([BLOCK_M, VALUE_DIM_PAD], tl.float32)
    peak, total, summed = visit_keys(
        peak, total, summed, row_query, slots, first, stop, key_cache, value_cache, block_table,
        kv_head, scale, False, WINDOW, SOFTCAP, NUM_KV_HEADS, HEAD_DIM, VALUE_DIM, HEAD_DIM_PAD, VALUE_DIM_PAD,
        BLOCK_SIZE, BLOCK_N, WIDEN,
    )  # fmt: skip
    value_dims = tl.arange(0, VALUE_DIM_PAD)
    is_result = is_head[:, None] & (value_dims < VALUE_DIM)[None, :]
    if num_keys <= split_length:
        result = summed / tl.where(total == 0, 1.0, total)[:, None]
        target = output + places[:, None] * VALUE_DIM + value_dims[None, :]
        tl.store(target, result.to(output.dtype.element_ty), mask=is_result)
    else:
        parts = (row.to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads) * split_stride + split
        tl.store(partial_peak + parts, peak, mask=is_head)
        tl.store(partial_total + parts, total, mask=is_head)
        tl.store(partial + parts[:, None] * VALUE_DIM + value_dims[None, :], summed, mask=is_result)


@triton.jit(do_not_specialize=["split_stride"], do_not_specialize_on_alignment=_UNALIGNED[:4])
def merge_kernel(
    output,
    partial,
    partial_peak,
    partial_total,
    query_starts,
    context_lens,
    split_stride,
    WINDOW: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_DIM_PAD: tl.constexpr,
):
    """Join the splits of one row and head: grid (NUM_HEADS, R). The tree of the sum has a fixed shape, MAX_SPLITS."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    token = tl.load(query_starts + row)
    if tl.load(query_starts + row + 1) - token != 1:
        return
    num_keys = _seen_keys(tl.load(context_lens + row), WINDOW)
    split_length = _split_length(num_keys)
    if num_keys <= split_length:
        return
    splits = tl.arange(0, MAX_SPLITS)
    is_split = splits < tl.cdiv(num_keys, split_length)
    parts = (row.to(tl.int64) * NUM_HEADS + head) * split_stride + splits
    value_dims = tl.arange(0, VALUE_DIM_PAD)
    is_value = value_dims < VALUE_DIM
    peaks = tl.load(partial_peak + parts, mask=is_split, other=float("-inf"))
    totals = tl.load(partial_total + parts, mask=is_split, other=0.0)
    sums = tl.load(
        partial + parts[:, None] * VALUE_DIM + value_dims[None, :],
        mask=is_split[:, None] & is_value[None, :],
        other=0.0,
    )
    weights = tl.exp2(peaks - tl.max(peaks, 0))
    result = tl.sum(sums * weights[:, None], 0) / tl.sum(totals * weights, 0)
    place = (token.to(tl.int64) * NUM_HEADS + head) * VALUE_DIM
    tl.store(output + place + value_dims, result.to(output.dtype.element_ty), mask=is_value)
