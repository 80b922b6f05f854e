"""A small transformer in a page, whose every step is made of tensor operations alone, on any device ("meta" too)."""

import torch
import torch.nn.functional as F

from jitney.kernels.paged_kv import PagedBatch, PagedKVCache
from jitney.models.base import LayerSpec, ModelSpec

VOCAB_SIZE = 61
MAX_POSITION = 64
_WIDTH, _HEADS = 16, 2


class PlainModel:
    """Two layers of attention and tanh over token and position embeddings; the same weights every time."""

    supports_graphs = True

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        layer = LayerSpec(_HEADS, _WIDTH // _HEADS)
        self.spec = ModelSpec("plain", "Plain", VOCAB_SIZE, MAX_POSITION, torch.float32, (layer, layer), 0)
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(self.device)

        self._tokens, self._positions = weight(VOCAB_SIZE, _WIDTH), weight(MAX_POSITION, _WIDTH)
        self._qkv = [weight(3 * _WIDTH, _WIDTH) / 3 for _ in self.spec.layers]
        self._head = weight(VOCAB_SIZE, _WIDTH)

    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, logits_index: torch.Tensor
    ) -> torch.Tensor:
        step = DenseAttention().begin(batch, cache.block_size)
        hidden = self._tokens[token_ids] + self._positions[batch.positions]
        for layer, qkv in enumerate(self._qkv):
            query, key, value = F.linear(hidden, qkv).view(len(token_ids), 3, _HEADS, -1).unbind(1)
            key_cache, value_cache = cache.keys[layer], cache.values[layer]
            key_cache.flatten(0, 1).index_copy_(0, batch.kv_index, key)
            value_cache.flatten(0, 1).index_copy_(0, batch.kv_index, value)
            hidden = torch.tanh(hidden + step.attend(query, key_cache, value_cache, 1.0).flatten(1))
        return F.linear(hidden[logits_index], self._head)


class DenseAttention:
    """Attention made of tensor operations alone: gathers every token's whole block table, hides what lies behind it.

    Has the methods of a backend of kernels/: begin(batch, block_size) gives a step, the step attends layer by layer.
    """

    name = "dense"
    supports_graphs = True

    def begin(self, batch: PagedBatch, block_size: int) -> "DenseAttentionStep":
        return DenseAttentionStep(batch)


class DenseAttentionStep:
    def __init__(self, batch: PagedBatch) -> None:
        self._batch = batch

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
        """[T, Hq, D] -> [T, Hq, D]; windows yes, softcap and sinks no."""
        assert softcap is None and sinks is None
        positions = self._batch.positions
        token = torch.arange(len(query), device=query.device, dtype=torch.int32)
        row = torch.searchsorted(self._batch.query_starts, token, right=True) - 1
        tables = self._batch.block_tables[row].long()
        group = query.shape[1] // key_cache.shape[2]
        keys, values = (
            cache[tables].flatten(1, 2).repeat_interleave(group, dim=2) for cache in (key_cache, value_cache)
        )
        distance = positions[:, None] - torch.arange(keys.shape[1], device=query.device)
        seen = distance >= 0 if sliding_window is None else (distance >= 0) & (distance < sliding_window)
        scores = torch.einsum("thd,tlhd->thl", query, keys) * scale
        values = torch.where(seen[:, :, None, None], values, 0.0)
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        return torch.einsum("thl,tlhd->thd", weights, values)
