"""A step's inputs as tensors: cut the one array into sections, keep the block tables, build the ragged batch.

All of it is vectorised over rows and tokens. Knows slots, positions and blocks; not the model and not sampling.
"""

from dataclasses import dataclass

import numpy as np
import torch

from jitney.device.transfer import to_device
from jitney.kernels.paged_kv import PagedBatch
from jitney.runner.host_sections import HostSections
from jitney.types import Int32, StepInputs


@dataclass(frozen=True, slots=True)
class DeviceSections:
    """Views of `StepInputs.data` on the device (int32; see StepInputs for the order)."""

    row_slots: torch.Tensor
    row_starts: torch.Tensor
    row_lens: torch.Tensor
    sample_rows: torch.Tensor
    prompt_tokens: torch.Tensor
    table_updates: torch.Tensor
    """[U, 3]"""
    swap_out: torch.Tensor
    """[O, 2] (device block, host block)"""
    swap_in: torch.Tensor
    """[I, 2] (device block, host block)"""

    @classmethod
    def cut(cls, data: torch.Tensor, inputs: StepInputs) -> "DeviceSections":
        sizes = list(inputs.section_sizes())
        slots, starts, lens, sample_rows, tokens, updates, *swaps = data[: sum(sizes)].split_with_sizes(sizes)
        swap_out, swap_in = (pairs.view(-1, 2) for pairs in swaps)
        return cls(slots, starts, lens, sample_rows, tokens, updates.view(-1, 3), swap_out, swap_in)


class BlockTables:
    """The block table of every slot, resident on the device."""

    def __init__(self, num_slots: int, max_blocks: int, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self.blocks = torch.zeros((num_slots, max_blocks), dtype=torch.int32, device=device)
        """[num_slots, max_blocks]: entries past a slot's length are leftovers."""

    def apply(self, updates: torch.Tensor, host_updates: Int32) -> None:
        """Write [U, 3] (slot, index, block); the last one wins where two name the same entry."""
        if len(host_updates) == 0:
            return
        # a scattered write has no order among equal targets, so keep only the last of each
        entries = host_updates[::-1, 0].astype(np.int64) * self.blocks.shape[1] + host_updates[::-1, 1]
        distinct, first = np.unique(entries, return_index=True)
        if len(distinct) < len(host_updates):
            updates = updates[to_device(len(host_updates) - 1 - first, updates.device)]
        slots, indices, blocks = updates.unbind(-1)
        self.blocks[slots.long(), indices.long()] = blocks


def build_token_ids(sections: DeviceSections, num_decode_rows: int, last_token: torch.Tensor) -> torch.Tensor:
    """[T] int64: decode rows continue from the token the device sampled last, the other rows' tokens are given."""
    carried = last_token[sections.row_slots[:num_decode_rows].long()]
    return torch.cat((carried, sections.prompt_tokens.long()))


def build_batch(sections: DeviceSections, host: HostSections, num_tokens: int, tables: BlockTables) -> PagedBatch:
    """Where each of the step's T tokens stands, and which place in the cache its K and V take."""
    device = tables.blocks.device
    row_slots = sections.row_slots.long()
    query_starts = torch.zeros(len(row_slots) + 1, dtype=torch.int32, device=device)
    query_starts[1:] = sections.row_lens.cumsum(0)
    if num_tokens == len(row_slots):  # one token in each row: the steady state
        token_slots, positions = row_slots, sections.row_starts.long()
    else:
        rows = torch.arange(len(row_slots), device=device)
        token_rows = rows.repeat_interleave(sections.row_lens.long(), output_size=num_tokens)
        token_slots = row_slots[token_rows]
        offsets = torch.arange(num_tokens, device=device) - query_starts[token_rows]
        positions = sections.row_starts[token_rows] + offsets
    blocks = tables.blocks[token_slots, positions // tables.block_size].long()
    host_context_lens = host.row_starts + host.row_lens
    return PagedBatch(
        block_tables=tables.blocks[row_slots],
        query_starts=query_starts,
        context_lens=sections.row_starts + sections.row_lens,
        positions=positions,
        kv_index=blocks * tables.block_size + positions % tables.block_size,
        host_query_starts=[0, *np.cumsum(host.row_lens).tolist()],
        host_context_lens=host_context_lens.tolist(),
        max_query_len=int(host.row_lens.max(initial=0)),
        max_context_len=int(host_context_lens.max(initial=0)),
    )


def build_decode_batch(row_slots: torch.Tensor, row_starts: torch.Tensor, tables: BlockTables) -> PagedBatch:
    """The batch of a step with one token in each row, from [R] int64 tensors alone: the host knows none of its numbers.

    The `host_` lists are empty, so that the same work serves every step with as many rows (see decode_graphs.py).
    """
    block_tables = tables.blocks[row_slots]
    blocks = block_tables.gather(1, (row_starts // tables.block_size)[:, None]).squeeze(1).long()
    return PagedBatch(
        block_tables=block_tables,
        query_starts=torch.arange(len(row_slots) + 1, dtype=torch.int32, device=row_slots.device),
        context_lens=(row_starts + 1).int(),
        positions=row_starts,
        kv_index=blocks * tables.block_size + row_starts % tables.block_size,
        host_query_starts=[],
        host_context_lens=[],
        max_query_len=1,
        max_context_len=tables.blocks.shape[1] * tables.block_size,
    )
