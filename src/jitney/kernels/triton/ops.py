"""The small operations of a decoder layer (`kernels/ops.py`) as Triton kernels, one launch each.

Nothing is read back and grids depend on shapes alone, so that CUDA graphs can hold them; tile shapes depend on the
model alone, so that a row's result is the same bits in any batch. Tile sizes are reckoned for Hopper (16 bytes a
thread and load), not measured yet. Knows no model and no batch.
"""

import torch
import triton

from jitney.kernels.ops import Activation
from jitney.kernels.triton.activation import gated_activation_kernel
from jitney.kernels.triton.norm import rms_norm_kernel
from jitney.kernels.triton.rope import rope_and_write_kv_kernel

_TILE = 1024
"""Elements of a program that would otherwise have less to do: 8 for each of 128 threads."""
_BLOCK_HEADS = 8


class TritonOps:
    """Implements `jitney.kernels.ops.Ops` on CUDA, for float32, bfloat16 and float16."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        return _rms_norm(x, None, weight, eps, offset)[0]

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_rms_norm`."""
        return _rms_norm(x, _dense_rows(residual), weight, eps, offset)

    def rope_and_write_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        kv_index: torch.Tensor,
    ) -> torch.Tensor:
        """See `Ops.rope_and_write_kv`. Tokens that share a place in the cache leave it undefined (padding does)."""
        num_tokens, num_heads, size = query.shape
        num_kv_heads = key.shape[1]
        rotated = query.new_empty(query.shape)
        if num_tokens == 0:
            return rotated
        query, key, value = _dense_rows(query), _dense_rows(key), _dense_rows(value)
        keys, values = (cache.view(-1, num_kv_heads, size) for cache in (key_cache, value_cache))
        num_tiles = triton.cdiv(num_heads, _BLOCK_HEADS) + triton.cdiv(num_kv_heads, _BLOCK_HEADS)
        rope_and_write_kv_kernel[(num_tokens, num_tiles)](
            rotated, query, key, value, cos, sin, positions, keys, values, kv_index,
            *query.stride()[:2], *key.stride()[:2], *value.stride()[:2], cos.stride(0), sin.stride(0),
            *keys.stride()[:2], *values.stride()[:2],
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HALF=cos.shape[-1], SIZE=size, BLOCK_HEADS=_BLOCK_HEADS,
            num_warps=4,
        )  # fmt: skip
        return rotated

    def gated_activation(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `Ops.gated_activation`."""
        gate_up = _dense_rows(gate_up)
        num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty(num_tokens, size)
        if num_tokens > 0:
            gated_activation_kernel[(num_tokens, triton.cdiv(size, _TILE))](
                output, gate_up, gate_up.stride(0), size, activation == "silu", _TILE, num_warps=4
            )
        return output


def _rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, offset: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, new_residual); without a residual the second is of no use."""
    rows = _dense_rows(x)
    rows = rows.view(-1, 1, x.shape[-1]) if x.dim() <= 2 else rows.flatten(0, -3)
    outer, inner, size = rows.shape
    normed = x.new_empty(x.shape)
    new_residual = normed if residual is None else x.new_empty(x.shape)
    block_size = triton.next_power_of_2(size)
    block_rows = max(1, _TILE // block_size)
    if x.numel() > 0:
        rms_norm_kernel[(triton.cdiv(outer * inner, block_rows),)](
            normed, new_residual, rows, rows if residual is None else residual, weight, eps, offset, outer * inner,
            rows.stride(0), rows.stride(1), 0 if residual is None else residual.stride(0),
            INNER=inner, SIZE=size, HAS_RESIDUAL=residual is not None, BLOCK_ROWS=block_rows, BLOCK_SIZE=block_size,
            num_warps=min(16, max(4, block_size // 512)),
        )  # fmt: skip
    return normed, new_residual


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` itself unless the values of a row do not stand side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
