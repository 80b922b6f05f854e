"""A decoder-only transformer as plain numbers: all that tells one family from another for the fused decoder.

Families differ by data, not by code. Knows nothing of checkpoints, devices or transformers (families.py reads its
configs).
"""

from dataclasses import dataclass, replace

import torch

from jitney.kernels.ops import Activation
from jitney.models.decoder.rope import Rope


@dataclass(frozen=True, slots=True)
class DecoderLayerConfig:
    """What may differ from layer to layer."""

    rope: Rope
    sliding_window: int | None = None
    """Tokens a query sees, itself included (None: all)."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One model. Every layer: norm, attention, residual; norm, gated MLP, residual."""

    architecture: str
    """The transformers class of the same model, such as LlamaForCausalLM."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[DecoderLayerConfig, ...]
    max_position_embeddings: int
    norm_eps: float
    activation: Activation
    attention_scale: float
    tie_word_embeddings: bool
    norm_offset: float = 0.0
    """1.0 where norm weights are stored as differences from one (Gemma)."""
    has_qk_norm: bool = False
    """RMSNorm over each head of Q and K before the rotation (Qwen 3, Gemma 3)."""
    has_post_norms: bool = False
    """RMSNorm on the results of attention and MLP too, before they are added (Gemma 2 and 3)."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias of the projection after attention."""
    mlp_bias: bool = False
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_multiplier: float = 1.0

    @property
    def query_size(self) -> int:
        """Width of the query of all heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys of all KV heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def ropes(self) -> set[Rope]:
        """The distinct rotations."""
        return {layer.rope for layer in self.layers}

    def with_rope_factors(self, factors: torch.Tensor) -> "DecoderConfig":
        """The same with every frequency divided by its factor ([head_dim / 2] float32)."""
        layers = tuple(replace(layer, rope=layer.rope.divided_by(factors)) for layer in self.layers)
        return replace(self, layers=layers)
