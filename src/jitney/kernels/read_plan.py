"""Which keys each query reads, tile by tile. Made once per step and shared by all layers with the same window.

Knows block tables and positions; knows neither heads nor tensors of K and V. A row's past is cut at fixed positions
into key tiles, so what is computed for a request does not depend on where its blocks happen to lie.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from jitney.kernels.paged_kv import PagedBatch

KEY_TILE = 512
"""Tokens read at once: bounds the scratch for gathered blocks."""
QUERY_TILE = 128
"""Query tokens scored at once against one key tile: with KEY_TILE it keeps the scores inside a CPU's L2 cache."""


@dataclass(frozen=True, slots=True)
class KeyTile:
    """Keys at positions [start, stop) of one row."""

    start: int
    stop: int
    blocks: slice | torch.Tensor
    """Blocks that hold them: a slice of the cache where they lie one after the other, else [n] int32 to gather."""
    skip: int
    """Tokens of the first block before `start`."""


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Query tokens [start, stop) of the batch, the first at `position` of its sequence, and the keys they see."""

    start: int
    stop: int
    position: int
    keys: tuple[KeyTile, ...]
    is_simple: bool
    """One key tile, and no mask but the plain causal triangle of a prompt over itself (one query needs none)."""


def plan_reads(batch: PagedBatch, block_size: int, sliding_window: int | None = None) -> list[QueryTile]:
    """The tiles of a ragged batch, rows in order.

    `sliding_window`: a query at position p sees the keys at p - sliding_window + 1 ... p (None: 0 ... p). Blocks that
    lie outside the window are not read.
    """
    query_starts = batch.host_query_starts or batch.query_starts.tolist()
    context_lens = batch.host_context_lens or batch.context_lens.tolist()
    if not context_lens:
        return []
    width = -(-max(context_lens) // block_size)
    tables = batch.block_tables[:, :width]
    places = _Places(tables, block_size)
    plan = []
    for row, context_len in enumerate(context_lens):
        first, last = query_starts[row], query_starts[row + 1]
        past = context_len - (last - first)
        for start, stop in _query_tiles(first, last, past, sliding_window):
            position = past + start - first
            end = past + stop - first
            begin = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            keys = tuple(places.key_tiles(row, begin, end))
            within_window = sliding_window is None or end <= sliding_window
            is_simple = len(keys) == 1 and (stop - start == 1 or (position == 0 and within_window))
            plan.append(QueryTile(start, stop, position, keys, is_simple))
    return plan


def _query_tiles(first: int, last: int, past: int, window: int | None) -> Iterator[tuple[int, int]]:
    length = last - first
    whole_prompt = past == 0 and length <= KEY_TILE and (window is None or length <= window)
    step = length if whole_prompt else QUERY_TILE
    for start in range(first, last, max(step, 1)):
        yield start, min(start + step, last)


class _Places:
    """Finds where the keys of a row lie in the cache."""

    def __init__(self, tables: torch.Tensor, block_size: int) -> None:
        self._tables = tables
        self._host: NDArray[np.int32] = tables.cpu().numpy()
        self._block_size = block_size
        self._tile_blocks = max(1, KEY_TILE // block_size)
        # breaks[r, j] - breaks[r, i] counts the places between blocks i and j where the next block is not the
        # neighbour in memory; entries past a row's end are garbage and never looked at.
        jumps = np.diff(self._host.astype(np.int64), axis=1) != 1
        self._breaks = np.zeros(self._host.shape, np.int64)
        np.cumsum(jumps, axis=1, out=self._breaks[:, 1:])

    def key_tiles(self, row: int, begin: int, end: int) -> Iterator[KeyTile]:
        """Tiles over positions [begin, end); cut at multiples of the tile size, whatever `begin` is."""
        size = self._tile_blocks * self._block_size
        for tile_start in range(begin - begin % size, end, size):
            start, stop = max(begin, tile_start), min(end, tile_start + size)
            first_block = start // self._block_size
            last_block = (stop - 1) // self._block_size
            blocks: slice | torch.Tensor
            if self._breaks[row, first_block] == self._breaks[row, last_block]:
                place = int(self._host[row, first_block])
                blocks = slice(place, place + last_block - first_block + 1)
            else:
                blocks = self._tables[row, first_block : last_block + 1]
            yield KeyTile(start, stop, blocks, start - first_block * self._block_size)
