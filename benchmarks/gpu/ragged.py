"""Ragged batches over a paged cache with scattered blocks, for the numerical checks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from jitney.kernels.paged_kv import PagedBatch

Row = tuple[int, int]
"""(tokens in the cache before, new tokens)"""


def ragged_batch(
    rows: Sequence[Row], block_size: int, device: torch.device, tables: torch.Tensor
) -> tuple[PagedBatch, int]:
    """A batch of the rows, and the number of blocks there are, scratch included.

    `tables`: [rows, blocks] int32 on the CPU, each row's blocks (see `random_tables`).
    """
    positions = torch.cat([torch.arange(past, past + new) for past, new in rows])
    lens = torch.tensor([new for _, new in rows])
    owners = torch.arange(len(rows)).repeat_interleave(lens)
    starts = [0, *lens.cumsum(0).tolist()]
    contexts = [past + new for past, new in rows]
    kv_index = tables[owners, positions // block_size].long() * block_size + positions % block_size
    fields: dict[str, Any] = {
        "block_tables": tables.to(device),
        "query_starts": torch.tensor(starts, dtype=torch.int32, device=device),
        "context_lens": torch.tensor(contexts, dtype=torch.int32, device=device),
        "positions": positions.to(device),
        "kv_index": kv_index.to(device),
        "host_query_starts": starts,
        "host_context_lens": contexts,
        "max_query_len": max(new for _, new in rows),
        "max_context_len": max(contexts),
    }
    known = {field.name for field in dataclasses.fields(PagedBatch)}
    return PagedBatch(**{name: value for name, value in fields.items() if name in known}), int(tables.max()) + 1


def random_tables(lens: Sequence[int], block_size: int, seed: int) -> torch.Tensor:
    """[rows, blocks] int32: each row's blocks for its `lens` tokens, scattered over the cache."""
    blocks_of = [-(-length // block_size) for length in lens]
    order = (torch.randperm(sum(blocks_of), generator=torch.Generator().manual_seed(seed)) + 1).to(torch.int32)
    tables = torch.zeros(len(lens), max(blocks_of), dtype=torch.int32)
    for table, own in zip(tables, torch.split(order, blocks_of), strict=True):
        table[: len(own)] = own
    return tables
