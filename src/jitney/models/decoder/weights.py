"""The fused decoder's weights: one tensor for Q, K and V and one for gate and up, filled straight from a checkpoint.

Every tensor is allocated once, on its device and in its dtype; the checkpoint's tensors are then copied into it (or
into their rows of it) one by one. There is never a second copy of the model. Knows the names that transformers gives
to tensors; knows no file format (see `TensorSource`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch

from jitney.errors import ModelLoadError
from jitney.models.decoder.config import DecoderConfig

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LEFT_OUT = ".rotary_emb.inv_freq"
"""Old checkpoints carry the rotary frequencies; they are computed from the config."""


class TensorSource(Protocol):
    """A checkpoint."""

    origin: str
    """Where it comes from, for messages."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape under its transformers name, without reading the tensors."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors one after the other, any float dtype, any device. None is kept by the source."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are [out, in]; None where the family has no such tensor."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    """Rows of Q, then K, then V."""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: torch.Tensor
    output_bias: torch.Tensor | None
    post_attention_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    """Rows of the gate, then of up."""
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    post_mlp_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """The whole model."""

    embedding: torch.Tensor
    """[vocab_size, hidden_size]"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor
    """[vocab_size, hidden_size]; the embedding itself where they are tied."""

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor once."""
        per_layer = [getattr(layer, field.name) for layer in self.layers for field in fields(layer)]
        every = [self.embedding, *per_layer, self.norm, self.head]
        return list({id(tensor): tensor for tensor in every if tensor is not None}.values())


def allocate_weights(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Weights with undefined contents."""

    def new(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    hidden, inner = config.hidden_size, config.intermediate_size
    qkv_rows = config.query_size + 2 * config.kv_size
    layers = tuple(
        LayerWeights(
            input_norm=new(hidden),
            qkv=new(qkv_rows, hidden),
            qkv_bias=new(qkv_rows) if config.qkv_bias else None,
            q_norm=new(config.head_dim) if config.has_qk_norm else None,
            k_norm=new(config.head_dim) if config.has_qk_norm else None,
            output=new(hidden, config.query_size),
            output_bias=new(hidden) if config.output_bias else None,
            post_attention_norm=new(hidden) if config.has_post_norms else None,
            mlp_norm=new(hidden),
            gate_up=new(2 * inner, hidden),
            gate_up_bias=new(2 * inner) if config.mlp_bias else None,
            down=new(hidden, inner),
            down_bias=new(hidden) if config.mlp_bias else None,
            post_mlp_norm=new(hidden) if config.has_post_norms else None,
        )
        for _ in config.layers
    )
    embedding = new(config.vocab_size, hidden)
    head = embedding if config.tie_word_embeddings else new(config.vocab_size, hidden)
    return DecoderWeights(embedding, layers, new(hidden), head)


def load_weights(
    config: DecoderConfig, source: TensorSource, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Allocate the weights and fill them.

    Raises ModelLoadError, naming the tensors, where the source lacks one, has one too many, or one of another shape;
    this is found before anything is read.
    """
    weights, targets = checked_targets(config, source, dtype, device)
    for name, tensor in source.tensors():
        if name in targets:
            targets[name].copy_(tensor)
        del tensor  # before the next one is read
    return weights


def checked_targets(
    config: DecoderConfig, source: TensorSource, dtype: torch.dtype, device: torch.device
) -> tuple[DecoderWeights, dict[str, torch.Tensor]]:
    """Unfilled weights for what a source holds, and where each of its tensors goes. Raises as `load_weights`."""
    shapes = {name: shape for name, shape in source.shapes().items() if not name.endswith(_LEFT_OUT)}
    weights = allocate_weights(_untied_if_stored(config, shapes), dtype, device)
    targets = destinations(config, weights)
    if HEAD in shapes and EMBEDDING not in shapes and weights.head is weights.embedding:
        targets[HEAD] = targets.pop(EMBEDDING)  # some writers keep a shared tensor under its other name
    _check(source.origin, shapes, targets)
    return weights, targets


def _untied_if_stored(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> DecoderConfig:
    """A head that is stored beside the embedding is read, whatever the config says: they may differ."""
    stored = HEAD in shapes and EMBEDDING in shapes
    return replace(config, tie_word_embeddings=False) if stored else config


def destinations(config: DecoderConfig, weights: DecoderWeights) -> dict[str, torch.Tensor]:
    """Where each tensor of a checkpoint goes: a view of the weights under the tensor's transformers name."""
    targets = {EMBEDDING: weights.embedding, "model.norm.weight": weights.norm}
    if weights.head is not weights.embedding:
        targets[HEAD] = weights.head
    for index, layer in enumerate(weights.layers):
        for name, tensor in _layer_destinations(config, layer).items():
            if tensor is not None:
                targets[f"model.layers.{index}.{name}"] = tensor
    return targets


def _layer_destinations(config: DecoderConfig, layer: LayerWeights) -> dict[str, torch.Tensor | None]:
    mlp_norm = "pre_feedforward_layernorm" if config.has_post_norms else "post_attention_layernorm"
    targets = {
        "input_layernorm.weight": layer.input_norm,
        "self_attn.q_norm.weight": layer.q_norm,
        "self_attn.k_norm.weight": layer.k_norm,
        "self_attn.o_proj.weight": layer.output,
        "self_attn.o_proj.bias": layer.output_bias,
        f"{mlp_norm}.weight": layer.mlp_norm,
        "mlp.down_proj.weight": layer.down,
        "mlp.down_proj.bias": layer.down_bias,
    }
    if config.has_post_norms:
        targets["post_attention_layernorm.weight"] = layer.post_attention_norm
        targets["post_feedforward_layernorm.weight"] = layer.post_mlp_norm
    q, kv = config.query_size, config.kv_size
    for kind, qkv, gate_up in (("weight", layer.qkv, layer.gate_up), ("bias", layer.qkv_bias, layer.gate_up_bias)):
        if qkv is not None:
            parts = qkv.split_with_sizes((q, kv, kv))
            targets |= {f"self_attn.{name}_proj.{kind}": part for name, part in zip("qkv", parts, strict=True)}
        if gate_up is not None:
            gate, up = gate_up.chunk(2)
            targets |= {f"mlp.gate_proj.{kind}": gate, f"mlp.up_proj.{kind}": up}
    return targets


def _check(origin: str, shapes: Mapping[str, tuple[int, ...]], targets: Mapping[str, torch.Tensor]) -> None:
    wanted = {name: tuple(target.shape) for name, target in targets.items()}
    wrong = [
        f"{name} is {shapes.get(name, 'missing')}, expected {wanted.get(name, 'no such tensor')}"
        for name in sorted(wanted.keys() | shapes.keys())
        if wanted.get(name) != shapes.get(name)
    ]
    if wrong:
        raise ModelLoadError(
            f"{len(wrong)} tensors of {origin} do not fit its config ({'; '.join(wrong[:3])}); fetch the model again, "
            "complete."
        )
