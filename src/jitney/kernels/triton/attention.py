"""The Triton attention backend: launch shapes for the kernels beside it.

Tile sizes follow from the head size and dtype, that is from the model, never from the batch; they are chosen for
Hopper's shared memory and registers and are not measured yet. Knows batches and caches, no models and no requests.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton

from jitney.kernels.paged_kv import PagedBatch
from jitney.kernels.triton.paged_attention import ragged_kernel
from jitney.kernels.triton.split_decode import MAX_SPLITS, MIN_SPLIT, decode_kernel, merge_kernel

_KEY_TILE_BYTES = 16 * 1024
"""One tile of K. Two tiles of K and V in flight take 72 KiB: three programs fit into a multiprocessor of Hopper."""


@dataclass(frozen=True, slots=True)
class TritonAttention:
    """Paged attention in Triton, for every dtype, head size, block size, window, softcap and sink.

    A row's result is the same bits whatever shares its batch. Steps can be captured in CUDA graphs: nothing is read
    back, and grids depend on shapes and on the batch's two bounds only.
    """

    name: str = "triton"
    supports_graphs: bool = True

    def begin(self, batch: PagedBatch, block_size: int) -> "TritonStep":
        return TritonStep(batch)


@dataclass(frozen=True, slots=True)
class TritonStep:
    batch: PagedBatch

    def attend(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        *,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `jitney.kernels.attention.AttentionStep`."""
        query = query.contiguous()
        output = query.new_empty(*query.shape[:2], value_cache.shape[3])
        num_tokens, num_rows = query.shape[0], len(self.batch.context_lens)
        if num_tokens == 0:
            return output
        shape = _kernel_shape(query, key_cache, value_cache, sinks is not None, sliding_window, softcap)
        tensors = (query, key_cache, value_cache, query if sinks is None else sinks.contiguous())
        if self.batch.max_query_len > 1:
            tile = _ragged_tile(query.dtype, shape["GROUP"], shape["HEAD_DIM_PAD"])
            num_tiles = num_tokens // (tile["BLOCK_M"] // shape["GROUP"]) + num_rows
            ragged_kernel[(num_tiles, shape["NUM_KV_HEADS"])](
                output, *tensors, *self._rows(), scale, num_rows, self.batch.block_tables.stride(0), **shape, **tile
            )
        self._decode(output, tensors, scale, shape)
        return output

    def _rows(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.batch.block_tables, self.batch.query_starts, self.batch.context_lens

    def _decode(
        self, output: torch.Tensor, tensors: tuple[torch.Tensor, ...], scale: float, shape: dict[str, Any]
    ) -> None:
        """The rows with one query."""
        num_rows, num_heads, value_dim = len(self.batch.context_lens), *output.shape[1:]
        longest = min(self.batch.max_context_len, shape["WINDOW"] or self.batch.max_context_len)
        splits = max(1, min(MAX_SPLITS.value, triton.cdiv(longest, MIN_SPLIT.value)))
        partial = output.new_empty(num_rows, num_heads, splits, value_dim, dtype=torch.float32)
        partial_peak, partial_total = output.new_empty(2, num_rows, num_heads, splits, dtype=torch.float32)
        parts = (output, partial, partial_peak, partial_total)
        tile = _decode_tile(tensors[0].dtype, shape["GROUP"], shape["HEAD_DIM_PAD"])
        decode_kernel[(shape["NUM_KV_HEADS"], splits, num_rows)](
            *parts, *tensors, *self._rows(), scale, splits, self.batch.block_tables.stride(0), **shape, **tile
        )
        if splits > 1:
            merge_kernel[(num_heads, num_rows)](
                *parts,
                *self._rows()[1:],
                splits,
                WINDOW=shape["WINDOW"],
                NUM_HEADS=num_heads,
                VALUE_DIM=value_dim,
                VALUE_DIM_PAD=shape["VALUE_DIM_PAD"],
                num_warps=4,
            )


def _kernel_shape(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    has_sinks: bool,
    sliding_window: int | None,
    softcap: float | None,
) -> dict[str, Any]:
    """The kernels' compile-time constants that the model decides."""
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    value_dim = value_cache.shape[3]
    return {
        "HAS_SINKS": has_sinks,
        "WINDOW": sliding_window or 0,
        "SOFTCAP": softcap or 0.0,
        "GROUP": query.shape[1] // num_kv_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "HEAD_DIM_PAD": max(16, triton.next_power_of_2(head_dim)),
        "VALUE_DIM_PAD": max(16, triton.next_power_of_2(value_dim)),
        "BLOCK_SIZE": block_size,
        "WIDEN": triton.knobs.runtime.interpret and query.dtype is torch.bfloat16,
    }


def _key_tile(dtype: torch.dtype, head_dim: int) -> int:
    return int(min(128, max(16, _KEY_TILE_BYTES // (head_dim * dtype.itemsize))))


def _decode_tile(dtype: torch.dtype, group: int, head_dim: int) -> dict[str, int]:
    """Bound by memory: few queries (a matrix product takes no fewer than 16), two tiles of K and V ahead."""
    block_m = max(16, triton.next_power_of_2(group))
    num_warps = 8 if dtype is torch.float32 else 4
    return {"BLOCK_M": block_m, "BLOCK_N": _key_tile(dtype, head_dim), "num_warps": num_warps, "num_stages": 5}


def _ragged_tile(dtype: torch.dtype, group: int, head_dim: int) -> dict[str, int]:
    """Bound by arithmetic: 128 query slots for two groups of four warps, one tile of K and V ahead.

    float32 has no matrix unit and holds its operands in registers: 16 slots, which it does not spill.
    """
    slots = 16 if dtype is torch.float32 else 128
    block_m = max(slots, triton.next_power_of_2(group))
    return {"BLOCK_M": block_m, "BLOCK_N": min(64, _key_tile(dtype, head_dim)), "num_warps": 8, "num_stages": 3}
