"""The small operations of a decoder layer between its matrix products, and their reference in plain torch.

An implementation may fuse them into one kernel each (see `Ops`); `TorchOps` runs anywhere and says what they mean.
Everything is computed in float32 and rounded once, to the dtype of the input. Knows no model and no batch.
"""

from typing import Literal, Protocol

import torch
import torch.nn.functional as F

Activation = Literal["silu", "gelu_tanh"]


class Ops(Protocol):
    """What a decoder needs besides attention and matrix products. Inputs may be views with any stride per token."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
        """x / rms(x) * (offset + weight) over the last dimension (Zhang and Sennrich 2019).

        Args:
            x: [..., D].
            weight: [D].
            eps: added to the mean square.
            offset: 1.0 for models that store their weights as differences from one (Gemma).
        """

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rms_norm(new_residual), new_residual), new_residual = x + residual rounded to x.dtype; all [T, D]."""

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
        """Rotate Q and K (Su et al. 2021; halves of a head as pairs, as GPT-NeoX does) and put K and V in the cache.

        Args:
            query: [T, num_heads, D].
            key, value: [T, num_kv_heads, D].
            cos, sin: [max_positions, rot / 2] float32; the first `rot` values of each head are rotated.
            positions: [T] int64, rows of `cos` and `sin`.
            key_cache, value_cache: [num_blocks, block_size, num_kv_heads, D], one layer's. Written in place.
            kv_index: [T] int64, block * block_size + offset.

        Returns:
            The rotated query, [T, num_heads, D].
        """

    def gated_activation(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(gate) * up (Shazeer 2020). gate_up: [T, 2 F], the gate first. Returns [T, F]."""


class TorchOps:
    """The reference."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
        """See `Ops.rms_norm`."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        scale = weight.float() + offset if offset else weight.float()
        return (normed * scale).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_rms_norm`."""
        new_residual = x + residual
        return self.rms_norm(new_residual, weight, eps, offset), new_residual

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
        """See `Ops.rope_and_write_kv`."""
        cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
        rotated_key = _rotate(key, cos, sin).to(key_cache.dtype)
        key_cache.view(-1, *key_cache.shape[2:]).index_copy_(0, kv_index, rotated_key)
        value_cache.view(-1, *value_cache.shape[2:]).index_copy_(0, kv_index, value.to(value_cache.dtype))
        return _rotate(query, cos, sin)

    def gated_activation(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `Ops.gated_activation`."""
        gate, up = gate_up.chunk(2, dim=-1)
        wide = gate.float()
        activated = F.silu(wide) if activation == "silu" else F.gelu(wide, approximate="tanh")
        return (activated * up.float()).to(gate_up.dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [T, H, D]; cos, sin: [T, 1, rot / 2]."""
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return turned if 2 * half == x.shape[-1] else torch.cat((turned, x[..., 2 * half :]), dim=-1)
