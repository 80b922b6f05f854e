"""Triton kernel for RMSNorm, with or without the addition to the residual stream before it. Knows rows, no layout.

A program takes BLOCK_ROWS whole rows, and the tile's shape follows from the row's size alone: a row's sum is added up
in the same order whatever else is in the batch.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    normed,
    new_residual,
    x,
    residual,
    weight,
    eps,
    offset,
    num_rows,
    x_outer_stride,
    x_inner_stride,
    residual_stride,
    INNER: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Row r of x stands at (r // INNER) * x_outer_stride + r % INNER * x_inner_stride; the results are contiguous."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_SIZE)
    inside = (rows < num_rows)[:, None] & (dims < SIZE)[None, :]
    starts = (rows // INNER) * x_outer_stride + (rows % INNER) * x_inner_stride
    wide = tl.load(x + starts[:, None] + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    places = rows[:, None] * SIZE + dims[None, :]
    if HAS_RESIDUAL:
        before = tl.load(residual + rows[:, None] * residual_stride + dims[None, :], mask=inside, other=0.0)
        rounded = (wide + before.to(tl.float32)).to(new_residual.dtype.element_ty)
        tl.store(new_residual + places, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    scale = tl.load(weight + dims, mask=dims < SIZE, other=0.0).to(tl.float32) + offset
    mean_square = tl.sum(wide * wide, 1) / SIZE
    result = wide * tl.rsqrt(mean_square + eps)[:, None] * scale[None, :]
    tl.store(normed + places, result.to(normed.dtype.element_ty), mask=inside)
