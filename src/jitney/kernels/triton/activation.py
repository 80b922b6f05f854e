"""Triton kernel for gated activations: activation(gate) * up. Knows nothing but the two halves of a row."""

import triton
import triton.language as tl

_GELU_SCALE = tl.constexpr(1.5957691216057308)
"""2 * sqrt(2 / pi)"""


@triton.jit
def gated_activation_kernel(
    output, gate_up, row_stride, SIZE: tl.constexpr, IS_SILU: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    """Grid (T, cdiv(SIZE, BLOCK_SIZE)); output [T, SIZE] is contiguous."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = dims < SIZE
    start = gate_up + row * row_stride + dims
    gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + SIZE, mask=inside, other=0.0).to(tl.float32)
    exponent = gate
    if not IS_SILU:  # (1 + tanh(x)) / 2 is the logistic function of 2 x
        exponent = _GELU_SCALE * (gate + 0.044715 * gate * gate * gate)
    result = gate / (1.0 + tl.exp(-exponent)) * up
    tl.store(output + row * SIZE + dims, result.to(output.dtype.element_ty), mask=inside)
