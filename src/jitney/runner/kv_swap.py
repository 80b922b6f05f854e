"""KV blocks of preempted requests in host memory, and the copies there and back. Knows block ids, not requests.

On the host, one block is the K and V of all layers side by side, so that it crosses the bus in one piece. On the device
the layers lie apart: a bounded staging tensor gathers or scatters them, one indexed copy a layer for many blocks. All
of it runs in order on the current stream, between the step before and the forward pass of its own step.
"""

from collections.abc import Iterator
from itertools import chain

import torch

from jitney.device.host_memory import empty_on_host
from jitney.kernels.paged_kv import PagedKVCache
from jitney.types import Int32

STAGING_BYTES = 32 * 2**20
"""Most that the staging tensor takes on the device, unless one block alone is larger."""
SLAB_BYTES = 2**28
"""Host memory is allocated in pieces of at most this size (see device/host_memory.py)."""


def swap_device_bytes(host_bytes: int, block_bytes: int) -> int:
    """Most that swapping takes on the device: the staging tensor, and the blocks of one layer on their way there."""
    return 2 * max(block_bytes, min(STAGING_BYTES, host_bytes)) if host_bytes > 0 else 0


class KVSwap:
    """Host memory for `num_host_blocks` blocks of `cache`; none is allocated, on either side, for 0 blocks."""

    def __init__(self, cache: PagedKVCache, num_host_blocks: int, staging_bytes: int = STAGING_BYTES) -> None:
        self._layers = tuple(chain(cache.keys, cache.values))
        self._sizes = [layer[0].numel() for layer in self._layers]
        first, block_size = self._layers[0], sum(self._sizes)
        block_bytes = block_size * first.element_size()
        self._slab_len = max(1, SLAB_BYTES // block_bytes)
        self._slabs = [
            empty_on_host((min(self._slab_len, num_host_blocks - start), block_size), first.dtype, first.device)
            for start in range(0, num_host_blocks, self._slab_len)
        ]
        num_staged = min(num_host_blocks, max(1, staging_bytes // block_bytes))
        self._staging = torch.empty((num_staged, block_size), dtype=first.dtype, device=first.device)

    def copy_out(self, pairs: torch.Tensor, host_pairs: Int32) -> None:
        """Copy blocks to the host. `pairs`: [N, 2] (device block, host block) on the device, `host_pairs` the same."""
        for blocks, host_blocks in self._batches(pairs, host_pairs):
            for layer, staged in zip(self._layers, self._staged(len(host_blocks)), strict=True):
                staged.copy_(layer[blocks])
            for row, block in enumerate(host_blocks):
                self._host_block(block).copy_(self._staging[row], non_blocking=True)

    def copy_in(self, pairs: torch.Tensor, host_pairs: Int32) -> None:
        """Copy blocks back to the device; arguments as for `copy_out`, no device block twice."""
        for blocks, host_blocks in self._batches(pairs, host_pairs):
            for row, block in enumerate(host_blocks):
                self._staging[row].copy_(self._host_block(block), non_blocking=True)
            for layer, staged in zip(self._layers, self._staged(len(host_blocks)), strict=True):
                layer.index_copy_(0, blocks, staged)

    def _batches(self, pairs: torch.Tensor, host_pairs: Int32) -> Iterator[tuple[torch.Tensor, list[int]]]:
        """Device blocks ([n] int64) and host blocks of as many pairs at a time as fit in the staging tensor."""
        for start in range(0, len(host_pairs), max(1, len(self._staging))):
            end = start + len(self._staging)
            yield pairs[start:end, 0].long(), host_pairs[start:end, 1].tolist()

    def _staged(self, num_blocks: int) -> Iterator[torch.Tensor]:
        """[num_blocks, block_size, num_kv_heads, head_dim] of each layer's K, then of each layer's V: views."""
        parts = self._staging[:num_blocks].split_with_sizes(self._sizes, dim=1)
        return (part.view(num_blocks, *layer.shape[1:]) for part, layer in zip(parts, self._layers, strict=True))

    def _host_block(self, block: int) -> torch.Tensor:
        return self._slabs[block // self._slab_len][block % self._slab_len]
