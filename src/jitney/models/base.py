"""What every model looks like to the runner: a forward pass over a ragged batch of tokens with a paged KV cache."""

from dataclasses import dataclass
from typing import Protocol

import torch

from jitney.kernels.paged_kv import PagedBatch, PagedKVCache


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One attention layer's cache. `sliding_window`: tokens a query sees, itself included (None: all)."""

    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the engine must know of a model."""

    name: str
    architecture: str
    vocab_size: int
    """Size of the logits."""
    max_position_embeddings: int
    dtype: torch.dtype
    layers: tuple[LayerSpec, ...]
    num_parameters: int

    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes over all layers."""
        return sum(2 * layer.num_kv_heads * layer.head_dim for layer in self.layers) * self.dtype.itemsize


class PagedModel(Protocol):
    """A causal language model that reads and writes its past through block tables."""

    spec: ModelSpec
    device: torch.device

    @property
    def supports_graphs(self) -> bool:
        """Whether `forward` of a decode step may be recorded: all it needs from the host is the number of rows."""

    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, logits_index: torch.Tensor
    ) -> torch.Tensor:
        """One step.

        Args:
            token_ids: [T] int64, the rows' tokens one after the other.
            batch: where each row's tokens stand and which blocks hold its past.
            cache: K and V of all layers; the new tokens' K and V are written into it before they are read.
            logits_index: [S] int64, the tokens whose logits are wanted.

        Returns:
            [S, vocab_size] float32 logits.
        """
