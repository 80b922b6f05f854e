"""What a model asks for attention: a backend that looks at each step's batch once, and then serves all its layers.

Knows batches and blocks, not models.
"""

from typing import Protocol

import torch

from jitney.kernels.paged_attention import paged_attention
from jitney.kernels.paged_kv import PagedBatch
from jitney.kernels.read_plan import QueryTile, plan_reads


class AttentionStep(Protocol):
    """One step's batch, shared by all layers."""

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
        """Causal attention of one layer; arguments and result as in `paged_attention`."""


class AttentionBackend(Protocol):
    """A way to compute paged attention."""

    name: str
    supports_graphs: bool
    """Whether a step that never looks at the batch on the host can be captured."""

    def begin(self, batch: PagedBatch, block_size: int) -> AttentionStep:
        """Prepare a step: whatever is the same for all layers is done here, or once per sliding window."""


class TorchAttention:
    """The reference in plain torch: correct on any device, fast enough on a CPU."""

    name = "torch"
    supports_graphs = False

    def begin(self, batch: PagedBatch, block_size: int) -> "TorchAttentionStep":
        """See `AttentionBackend.begin`."""
        return TorchAttentionStep(batch, block_size)


class TorchAttentionStep:
    """A batch and its read plans, one for each sliding window."""

    def __init__(self, batch: PagedBatch, block_size: int) -> None:
        self._batch = batch
        self._block_size = block_size
        self._plans: dict[int | None, list[QueryTile]] = {}

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
        """See `AttentionStep.attend`."""
        if sliding_window not in self._plans:
            self._plans[sliding_window] = plan_reads(self._batch, self._block_size, sliding_window)
        return paged_attention(
            query,
            key_cache,
            value_cache,
            self._batch,
            scale,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=sinks,
            plan=self._plans[sliding_window],
        )
