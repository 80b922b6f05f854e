"""Paged attention by torch's own `varlen_attn` (Flash Attention over block tables).

Flash Attention cuts the keys into splits by the batch's longest context, so a row's result would depend on its batch
mates; with one split it does not. (torch's FA2 is also wrong for paged ragged batches with more: pytorch#194167.)
Knows the arguments' meaning; `attention.py` knows when they are supported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from jitney.kernels.paged_kv import PagedBatch

VarlenAttn = Callable[..., Any]
"""torch.nn.attention.varlen.varlen_attn, torch 2.13's signature."""


@dataclass(frozen=True, slots=True)
class VarlenAttention:
    """float16 and bfloat16, head sizes that are multiples of 8 up to 256, sliding windows; no softcap, no sinks.

    takes_key_starts: FA2 insists on cumulative key lengths and ignores them beside `seqused_k`; FA3 refuses them beside
    a block table.
    """

    function: VarlenAttn
    takes_key_starts: bool
    name: str = "varlen"
    supports_graphs: bool = True

    def begin(self, batch: PagedBatch, block_size: int) -> "VarlenStep":
        key_starts = F.pad(batch.context_lens.cumsum(0, dtype=torch.int32), (1, 0)) if self.takes_key_starts else None
        return VarlenStep(self.function, batch, key_starts)


@dataclass(frozen=True, slots=True)
class VarlenStep:
    function: VarlenAttn
    batch: PagedBatch
    key_starts: torch.Tensor | None

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
        """See `jitney.kernels.attention.AttentionStep`. Raises ValueError for a softcap or sinks."""
        if softcap is not None or sinks is not None:
            raise ValueError("varlen attention knows no softcap and no sinks; choose_attention takes Triton for them.")
        if query.shape[0] == 0:
            return query.new_empty(*query.shape[:2], value_cache.shape[3])
        batch = self.batch
        output: torch.Tensor = self.function(
            query,
            key_cache,
            value_cache,
            batch.query_starts,
            self.key_starts,
            batch.max_query_len,
            batch.max_context_len,
            scale=scale,
            window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            enable_gqa=query.shape[1] != key_cache.shape[2],
            seqused_k=batch.context_lens,
            block_table=batch.block_tables,
            num_splits=1,
        )
        return output
