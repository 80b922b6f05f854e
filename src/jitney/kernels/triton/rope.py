"""Triton kernel that rotates Q and K and puts K and V into the paged cache, in one launch. Knows tokens, no rows.

A program takes BLOCK_HEADS heads of one token: either query heads, or key heads with their values. Halves of a head
are rotated as pairs (GPT-NeoX); what is beyond 2 * HALF is copied.
"""

import triton
import triton.language as tl


@triton.jit
def _copy_heads(
    target, source, heads, num_heads, source_stride, target_stride, FIRST: tl.constexpr, STOP: tl.constexpr
):
    """Values [FIRST, STOP) of each head, unchanged."""
    dims = FIRST + tl.arange(0, triton.next_power_of_2(STOP - FIRST))
    inside = (heads < num_heads)[:, None] & (dims < STOP)[None, :]
    values = tl.load(source + heads[:, None] * source_stride + dims[None, :], mask=inside)
    tl.store(
        target + heads[:, None] * target_stride + dims[None, :],
        values.to(source.dtype.element_ty).to(target.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def _rotate_heads(
    target, source, cos, sin, heads, num_heads, source_stride, target_stride, HALF: tl.constexpr, SIZE: tl.constexpr
):
    """All values of each head, the first 2 * HALF rotated; rounded to the source's dtype."""
    if HALF > 0:
        dims = tl.arange(0, triton.next_power_of_2(HALF))
        cosine = tl.load(cos + dims, mask=dims < HALF, other=0.0)[None, :]
        sine = tl.load(sin + dims, mask=dims < HALF, other=0.0)[None, :]
        inside = (heads < num_heads)[:, None] & (dims < HALF)[None, :]
        start = source + heads[:, None] * source_stride + dims[None, :]
        first = tl.load(start, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(start + HALF, mask=inside, other=0.0).to(tl.float32)
        turned_first = (first * cosine - second * sine).to(source.dtype.element_ty)
        turned_second = (second * cosine + first * sine).to(source.dtype.element_ty)
        goal = target + heads[:, None] * target_stride + dims[None, :]
        tl.store(goal, turned_first.to(target.dtype.element_ty), mask=inside)
        tl.store(goal + HALF, turned_second.to(target.dtype.element_ty), mask=inside)
    if 2 * HALF < SIZE:
        _copy_heads(target, source, heads, num_heads, source_stride, target_stride, 2 * HALF, SIZE)


@triton.jit
def rope_and_write_kv_kernel(
    rotated,
    query,
    key,
    value,
    cos,
    sin,
    positions,
    key_cache,
    value_cache,
    kv_index,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    cos_stride,
    sin_stride,
    key_place_stride,
    key_cache_head_stride,
    value_place_stride,
    value_cache_head_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """Grid (T, query tiles + KV tiles). rotated is contiguous; a place is one token's room in a cache."""
    NUM_QUERY_TILES: tl.constexpr = (NUM_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    position = tl.load(positions + token)
    cos_row = cos + position * cos_stride
    sin_row = sin + position * sin_stride
    if tile < NUM_QUERY_TILES:
        heads = tile * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        source = query + token * query_stride
        target = rotated + token * (NUM_HEADS * SIZE)
        _rotate_heads(target, source, cos_row, sin_row, heads, NUM_HEADS, query_head_stride, SIZE, HALF, SIZE)
    else:
        heads = (tile - NUM_QUERY_TILES) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        place = tl.load(kv_index + token)
        source = key + token * key_stride
        target = key_cache + place * key_place_stride
        _rotate_heads(
            target, source, cos_row, sin_row, heads, NUM_KV_HEADS, key_head_stride, key_cache_head_stride, HALF, SIZE
        )
        source = value + token * value_stride
        target = value_cache + place * value_place_stride
        _copy_heads(target, source, heads, NUM_KV_HEADS, value_head_stride, value_cache_head_stride, 0, SIZE)
