"""The fused decoder: one forward pass for Llama and its relatives over a ragged batch and a paged KV cache.

    embed -> [norm -> QKV -> rotate, write KV -> attention -> output -> add, norm -> gate, up -> down -> add] -> head

Each addition to the residual stream is one operation with the norm that follows it. Knows no checkpoint and no family
(DecoderConfig says what differs), and neither requests nor steps.
"""

import torch
import torch.nn.functional as F

from jitney.kernels.attention import AttentionBackend, AttentionStep
from jitney.kernels.ops import Ops
from jitney.kernels.paged_kv import PagedBatch, PagedKVCache
from jitney.models.base import LayerSpec, ModelSpec
from jitney.models.decoder.config import DecoderConfig
from jitney.models.decoder.weights import DecoderWeights, LayerWeights


class FusedDecoder:
    """PagedModel over a DecoderConfig and its weights.

    Args:
        name: what the model is called in messages.
        config: the numbers.
        weights: all on one device and in one dtype.
        attention: how attention is computed.
        ops: how norms, rotations and activations are computed.
    """

    spec: ModelSpec
    device: torch.device

    def __init__(
        self, name: str, config: DecoderConfig, weights: DecoderWeights, attention: AttentionBackend, ops: Ops
    ) -> None:
        self.device = weights.embedding.device
        self._config = config
        self._weights = weights
        self.attention = attention
        self._ops = ops
        tables = {rope: rope.tables(config.max_position_embeddings, self.device) for rope in config.ropes}
        self._rotations = [tables[layer.rope] for layer in config.layers]
        dtype = weights.embedding.dtype
        # The factor is rounded to the model's dtype before it is used, as the model was trained.
        self._embedding_multiplier = torch.tensor(config.embedding_multiplier).to(dtype).item()
        self.spec = ModelSpec(
            name=name,
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            dtype=dtype,
            layers=tuple(
                LayerSpec(config.num_kv_heads, config.head_dim, layer.sliding_window) for layer in config.layers
            ),
            num_parameters=sum(tensor.numel() for tensor in weights.tensors()),
        )

    @property
    def way(self) -> str:
        """What computes it, in words."""
        return f"the fused decoder with {self.attention.name} attention"

    @property
    def supports_graphs(self) -> bool:
        """Whether a step can be captured: the pass itself never looks at the batch on the host."""
        return self.attention.supports_graphs

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, logits_index: torch.Tensor
    ) -> torch.Tensor:
        """One step; see `PagedModel.forward`."""
        step = self.attention.begin(batch, cache.block_size)
        layers = self._weights.layers
        next_norms = [*(layer.input_norm for layer in layers[1:]), self._weights.norm]
        residual = F.embedding(token_ids, self._weights.embedding)
        if self._embedding_multiplier != 1.0:
            residual = residual * self._embedding_multiplier
        hidden = self._norm(residual, layers[0].input_norm)
        for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            hidden = self._attend(index, hidden, batch, cache, step)
            if index == len(layers) - 1:  # from here on only the tokens whose logits are wanted matter
                hidden, residual = hidden.index_select(0, logits_index), residual.index_select(0, logits_index)
            hidden, residual = self._add_and_norm(hidden, residual, layer.post_attention_norm, layer.mlp_norm)
            hidden = self._mlp(layer, hidden)
            hidden, residual = self._add_and_norm(hidden, residual, layer.post_mlp_norm, next_norm)
        return self._logits(hidden)

    def _attend(
        self, index: int, hidden: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, step: AttentionStep
    ) -> torch.Tensor:
        config, layer = self._config, self._weights.layers[index]
        key_cache, value_cache = cache.keys[index], cache.values[index]
        qkv = F.linear(hidden, layer.qkv, layer.qkv_bias).view(len(hidden), -1, config.head_dim)
        query, key, value = qkv.split_with_sizes((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = self._norm(query, layer.q_norm), self._norm(key, layer.k_norm)
        cos, sin = self._rotations[index]
        query = self._ops.rope_and_write_kv(
            query, key, value, cos, sin, batch.positions, key_cache, value_cache, batch.kv_index
        )
        mixed = step.attend(
            query,
            key_cache,
            value_cache,
            config.attention_scale,
            sliding_window=config.layers[index].sliding_window,
            softcap=config.attention_softcap,
        )
        return F.linear(mixed.flatten(1), layer.output, layer.output_bias)

    def _mlp(self, layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
        gate_up = F.linear(hidden, layer.gate_up, layer.gate_up_bias)
        return F.linear(self._ops.gated_activation(gate_up, self._config.activation), layer.down, layer.down_bias)

    def _add_and_norm(
        self, x: torch.Tensor, residual: torch.Tensor, own_norm: torch.Tensor | None, next_norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a block's result to the residual stream (normed first in some families), and norm the sum."""
        if own_norm is not None:
            x = self._norm(x, own_norm)
        return self._ops.add_rms_norm(x, residual, next_norm, self._config.norm_eps, self._config.norm_offset)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, weight, self._config.norm_eps, self._config.norm_offset)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = F.linear(hidden, self._weights.head).float()
        cap = self._config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
