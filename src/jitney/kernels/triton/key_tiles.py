"""Online softmax over tiles of keys, read through a block table: the inner loop of every attention kernel here.

Base 2, all sums in float32 (Milakov and Gimelshein 2018; FlashAttention-2, Dao 2023). The query heads that share a KV
head stand side by side in one tile, so K and V are read once per group. Knows one row's keys; no batch, no grid.

Names: T tokens, R rows, G query heads per KV head (GROUP), M query slots of a tile, N keys of a tile. Caches are
contiguous [num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM or VALUE_DIM]; WINDOW 0 and SOFTCAP 0 mean none. WIDEN casts
the operands of products to float32: Triton's interpreter multiplies bfloat16 as if it were integers.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _dot(a, b, WIDEN: tl.constexpr):
    """Product in float32; "ieee" because the default rounds float32 operands to tf32."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _base2_scores(scores, scale, SOFTCAP: tl.constexpr):
    if SOFTCAP > 0:
        ratio = scores * (scale / SOFTCAP)
        decay = tl.exp2(-2 * LOG2E * tl.abs(ratio))
        tanh = (1 - decay) / (1 + decay)
        return tl.where(ratio < 0, -tanh, tanh) * (SOFTCAP * LOG2E)
    return scores * (scale * LOG2E)


@triton.jit
def visit_keys(
    peak,
    total,
    summed,
    query,
    positions,
    first,
    stop,
    key_cache,
    value_cache,
    block_table,
    kv_head,
    scale,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_DIM_PAD: tl.constexpr,
    VALUE_DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Take the keys at positions [first, stop) into the running softmax of M queries; returns its new state.

    peak [M]: largest base-2 score so far; total [M]: sum of weights; summed [M, VALUE_DIM_PAD]: weighted values.
    MASKED: some query may not see some of the keys (its position says which).
    """
    dims = tl.arange(0, HEAD_DIM_PAD)
    value_dims = tl.arange(0, VALUE_DIM_PAD)
    for start in range(first, stop, BLOCK_N):
        key_positions = start + tl.arange(0, BLOCK_N)
        present = key_positions < stop
        block = tl.load(block_table + key_positions // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        place = (block * BLOCK_SIZE + key_positions % BLOCK_SIZE) * NUM_KV_HEADS + kv_head
        key = tl.load(
            key_cache + place[:, None] * HEAD_DIM + dims[None, :],
            mask=present[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        value = tl.load(
            value_cache + place[:, None] * VALUE_DIM + value_dims[None, :],
            mask=present[:, None] & (value_dims < VALUE_DIM)[None, :],
            other=0.0,
        )
        scores = _base2_scores(_dot(query, tl.trans(key), WIDEN), scale, SOFTCAP)
        visible = present[None, :]
        if MASKED:
            distance = positions[:, None] - key_positions[None, :]
            visible = visible & (distance >= 0)
            if WINDOW > 0:
                visible = visible & (distance < WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: -inf - -inf would be NaN
        weights = tl.exp2(scores - base[:, None])
        keep = tl.exp2(peak - base)
        total = total * keep + tl.sum(weights, 1)
        summed = summed * keep[:, None] + _dot(weights.to(value.dtype), value, WIDEN)
        peak = new_peak
    return peak, total, summed
