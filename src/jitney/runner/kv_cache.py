"""Allocates the paged KV cache. Knows shapes, not how many blocks are wise (see kv_sizing.py)."""

import torch

from jitney.kernels.paged_kv import PagedKVCache
from jitney.models.base import ModelSpec


def allocate_kv_cache(spec: ModelSpec, num_blocks: int, block_size: int, device: torch.device) -> PagedKVCache:
    """K and V of every layer, [num_blocks, block_size, num_kv_heads, head_dim] each, in the model's dtype.

    `num_blocks` counts all blocks, scratch block 0 included. Contents are undefined except for block 0, which is zero:
    rows whose result nobody wants may read it, and should not find NaN there.
    """

    def tensors() -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.empty((num_blocks, block_size, layer.num_kv_heads, layer.head_dim), dtype=spec.dtype, device=device)
            for layer in spec.layers
        )

    cache = PagedKVCache(tensors(), tensors(), block_size)
    for tensor in (*cache.keys, *cache.values):
        tensor[0] = 0
    return cache
