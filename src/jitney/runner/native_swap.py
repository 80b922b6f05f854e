"""KV blocks of preempted requests beside the cache, for a device whose memory is the host's. Knows block ids only."""

import numpy as np

from jitney.kernels.native.kv_cache import NativeKVCache
from jitney.types import Int32


class NativeSwap:
    """Room for `num_host_blocks` blocks of `cache`."""

    def __init__(self, cache: NativeKVCache, num_host_blocks: int) -> None:
        self._layers = (*cache.keys, *cache.values)
        self._kept = [np.empty((num_host_blocks, layer.shape[1]), layer.dtype) for layer in self._layers]

    def copy_out(self, pairs: Int32) -> None:
        """[N, 2] (cache block, kept block)"""
        if len(pairs):
            for layer, kept in zip(self._layers, self._kept, strict=True):
                kept[pairs[:, 1]] = layer[pairs[:, 0]]

    def copy_in(self, pairs: Int32) -> None:
        """[N, 2] (cache block, kept block)"""
        if len(pairs):
            for layer, kept in zip(self._layers, self._kept, strict=True):
                layer[pairs[:, 0]] = kept[pairs[:, 1]]
