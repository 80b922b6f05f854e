"""The native code's KV cache: plain memory that numpy sees as blocks. What lies where in a block only C++ knows."""

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HUGE_PAGE = 2**21


class NativeKVCache:
    """K and V of every layer, each [num_blocks, values of a block]. Block 0 is scratch, as in PagedKVCache.

    Args:
        keys, values: one C-contiguous array for each layer; bfloat16 as uint16.
        block_size: tokens in a block.
    """

    def __init__(self, keys: Sequence[NDArray[Any]], values: Sequence[NDArray[Any]], block_size: int) -> None:
        self.keys, self.values = tuple(keys), tuple(values)
        self.block_size = block_size
        pointers = ctypes.c_void_p * len(self.keys)
        self.key_pointers = pointers(*(array.ctypes.data for array in self.keys))
        self.value_pointers = pointers(*(array.ctypes.data for array in self.values))

    @classmethod
    def allocate(cls, layer_values: Sequence[int], dtype: Any, num_blocks: int, block_size: int) -> "NativeKVCache":
        """Zeroes that take no memory until they are written; in huge pages where the system grants them.

        Args:
            layer_values: for each layer, numbers in the keys of one token (KV heads x head size).
            num_blocks: all blocks, scratch block 0 included.
        """
        sizes = [num_blocks * block_size * count for count in layer_values]
        memory = np.frombuffer(_huge_pages(2 * sum(sizes) * np.dtype(dtype).itemsize), dtype, 2 * sum(sizes))
        parts = np.split(memory, np.cumsum(sizes + sizes)[:-1])
        blocks = [part.reshape(num_blocks, -1) for part in parts]
        return cls(blocks[: len(sizes)], blocks[len(sizes) :], block_size)


def _huge_pages(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, max(1, -(-size // _HUGE_PAGE)) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: ordinary pages do
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
