"""Which transformers configs the fused decoder knows, and what they mean. Knows no weights.

A config is either understood to the last detail or not at all (None): whatever is unknown is served by transformers'
own code, never by a guess.
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import (
    AutoConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from jitney.kernels.ops import Activation
from jitney.models.decoder.config import DecoderConfig, DecoderLayerConfig
from jitney.models.decoder.rope import Rope, read_rope
from jitney.models.rope import context_limit

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_MUST_BE_UNSET = (
    "quantization_config",
    "attention_chunk_size",
    "use_bidirectional_attention",
    "num_kv_shared_layers",
    "is_encoder_decoder",
    "add_cross_attention",
    "is_heterogeneous",
    "transformers_weights",
)
"""Attributes that ask for something the fused decoder does not do."""


class _Unknown(Exception):
    """The config holds something that is not known exactly."""


def decoder_config(config: PreTrainedConfig | Mapping[str, Any]) -> DecoderConfig | None:
    """What a transformers config (or the contents of a config.json) says; None if it is not known exactly."""
    if not isinstance(config, PreTrainedConfig):
        if config.get("model_type") not in {known.model_type for known in _FAMILIES}:
            return None
        config = AutoConfig.for_model(**config)
    read = _FAMILIES.get(type(config))
    if read is None or not _is_plain(config):
        return None
    try:
        return read(config)
    except _Unknown:
        return None


def _is_plain(config: PreTrainedConfig) -> bool:
    sizes = [config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.vocab_size]
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return (
        not any(getattr(config, name, None) for name in _MUST_BE_UNSET)
        and getattr(config, "is_causal", True) is not False
        and all(isinstance(size, int) and size > 0 for size in [*sizes, heads, kv_heads])
        and heads % kv_heads == 0
    )


def _common(config: PreTrainedConfig, activation: str, layers: tuple[DecoderLayerConfig, ...]) -> dict[str, Any]:
    """What every family's config names alike."""
    if activation not in _ACTIVATIONS:
        raise _Unknown
    head_dim = _head_dim(config)
    return {
        "architecture": type(config).__name__.removesuffix("Config").removesuffix("Text") + "ForCausalLM",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": head_dim,
        "layers": layers,
        "max_position_embeddings": context_limit(config),
        "norm_eps": config.rms_norm_eps,
        "activation": _ACTIVATIONS[activation],
        "attention_scale": head_dim**-0.5,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def _head_dim(config: PreTrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rope(config: PreTrainedConfig, layer_type: str | None = None) -> Rope:
    rope = read_rope(config, _head_dim(config), layer_type)
    if rope is None:
        raise _Unknown
    return rope


def _windows(config: PreTrainedConfig, types: list[str]) -> list[int | None]:
    """Each layer's window by its type."""
    window = config.sliding_window if "sliding_attention" in types else None
    known = {"full_attention": None, "sliding_attention": window}
    if len(types) != config.num_hidden_layers or not known.keys() >= set(types):
        raise _Unknown
    if "sliding_attention" in types and (not isinstance(window, int) or window < 1):
        raise _Unknown
    return [known[each] for each in types]


def _full_layers(config: PreTrainedConfig) -> tuple[DecoderLayerConfig, ...]:
    """For classes that know no windows; a config that names some anyway is not theirs."""
    if getattr(config, "layer_types", None) or getattr(config, "sliding_window", None):
        raise _Unknown
    return tuple([DecoderLayerConfig(_rope(config))] * config.num_hidden_layers)


def _typed_layers(config: PreTrainedConfig) -> tuple[DecoderLayerConfig, ...]:
    rope = _rope(config)
    return tuple(DecoderLayerConfig(rope, window) for window in _windows(config, config.layer_types))


def _llama(config: PreTrainedConfig) -> DecoderConfig:
    return DecoderConfig(
        **_common(config, config.hidden_act, _full_layers(config)),
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )


def _mistral(config: PreTrainedConfig) -> DecoderConfig:
    window = config.sliding_window
    if getattr(config, "layer_types", None) or not (window is None or (isinstance(window, int) and window > 0)):
        raise _Unknown
    layers = tuple([DecoderLayerConfig(_rope(config), window)] * config.num_hidden_layers)
    return DecoderConfig(**_common(config, config.hidden_act, layers))


def _qwen2(config: PreTrainedConfig) -> DecoderConfig:
    return DecoderConfig(**_common(config, config.hidden_act, _typed_layers(config)), qkv_bias=True)


def _qwen3(config: PreTrainedConfig) -> DecoderConfig:
    return DecoderConfig(
        **_common(config, config.hidden_act, _typed_layers(config)),
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        has_qk_norm=True,
    )


def _smollm3(config: PreTrainedConfig) -> DecoderConfig:
    windows = _windows(config, config.layer_types)
    rotates = config.no_rope_layers[: len(windows)]  # 1: this layer does rotate
    if len(rotates) != len(windows) or (any(windows) and not config.use_sliding_window):
        raise _Unknown
    rope, no_rope = _rope(config), Rope.none(_head_dim(config))
    layers = [DecoderLayerConfig(rope if on else no_rope, window) for on, window in zip(rotates, windows, strict=True)]
    return DecoderConfig(
        **_common(config, config.hidden_act, tuple(layers)),
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )


def _gemma_only(config: PreTrainedConfig) -> dict[str, Any]:
    """What all Gemmas share."""
    return {
        "norm_offset": 1.0,
        "embedding_multiplier": config.hidden_size**0.5,
        "qkv_bias": config.attention_bias,
        "output_bias": config.attention_bias,
    }


def _gemma(config: PreTrainedConfig) -> DecoderConfig:
    return DecoderConfig(**_common(config, config.hidden_act, _full_layers(config)), **_gemma_only(config))


def _gemma2(config: PreTrainedConfig) -> DecoderConfig:
    common = _common(config, config.hidden_activation, _typed_layers(config))
    return DecoderConfig(
        **common | {"attention_scale": config.query_pre_attn_scalar**-0.5},
        **_gemma_only(config),
        has_post_norms=True,
        attention_softcap=config.attn_logit_softcapping,
        logit_softcap=config.final_logit_softcapping,
    )


def _gemma3(config: PreTrainedConfig) -> DecoderConfig:
    if config.attn_logit_softcapping is not None:  # transformers' class reads it and does not use it
        raise _Unknown
    types = config.layer_types
    ropes = {each: _rope(config, each) for each in sorted(set(types))}
    windows = _windows(config, types)
    layers = tuple(DecoderLayerConfig(ropes[each], window) for each, window in zip(types, windows, strict=True))
    common = _common(config, config.hidden_activation, layers)
    return DecoderConfig(
        **common | {"attention_scale": config.query_pre_attn_scalar**-0.5},
        **_gemma_only(config),
        has_qk_norm=True,
        has_post_norms=True,
        logit_softcap=config.final_logit_softcapping,
    )


_FAMILIES: dict[type[PreTrainedConfig], Callable[[PreTrainedConfig], DecoderConfig]] = {
    LlamaConfig: _llama,
    MistralConfig: _mistral,
    Qwen2Config: _qwen2,
    Qwen3Config: _qwen3,
    SmolLM3Config: _smollm3,
    GemmaConfig: _gemma,
    Gemma2Config: _gemma2,
    Gemma3TextConfig: _gemma3,
}
"""By exact class: a subclass may mean anything."""
