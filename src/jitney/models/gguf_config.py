"""From the metadata of a GGUF file to a transformers config. Knows llama.cpp's keys and conventions, reads no weights.

What llama.cpp hard-codes per architecture (Gemma's window patterns, its 27B query scale) is hard-coded here too.
"""

from collections.abc import Callable
from typing import Any

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from jitney.errors import ModelLoadError
from jitney.models.gguf_file import GGUFFile

_GEMMA3_LOCAL_ROPE_THETA = 10000.0
_GEMMA3_PATTERN = 6
"""Every sixth layer of Gemma 3 sees everything, the others a window."""
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def gguf_config(file: GGUFFile) -> PreTrainedConfig:
    """The transformers config of the file's model.

    Raises ModelLoadError for an architecture or a rope scaling that is not served, or where a key is missing.
    """
    build = _BUILDERS.get(file.architecture)
    if build is None:
        raise ModelLoadError(
            f"{file.path} holds the architecture {file.architecture!r}; Jitney reads GGUF files of "
            f"{', '.join(sorted(_BUILDERS))}. Use the model's safetensors folder instead."
        )
    keys = _Keys(file)
    if keys.get("expert_count", 0):
        raise ModelLoadError(f"{file.path} is a mixture of experts, which is not read from GGUF; use safetensors.")
    return build(keys)


class _Keys:
    """The metadata under the architecture's prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.file.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelLoadError(
                f"{self.file.path} lacks the metadata key {self.file.architecture}.{key}; fetch it anew."
            )
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.need(key) if default is None else self.get(key, default)
        if not isinstance(value, int):
            raise ModelLoadError(
                f"{self.file.path}: {self.file.architecture}.{key} differs from layer to layer, which is not read from "
                "GGUF; use safetensors."
            )
        return value

    def has_tensor(self, name: str) -> bool:
        return name in self.file.tensors

    @property
    def head_dim(self) -> int:
        heads = self.count("attention.head_count")
        return self.count("attention.key_length", self.count("embedding_length") // heads)

    def common(self) -> dict[str, Any]:
        """What every decoder's config names alike."""
        if not self.has_tensor("token_embd.weight"):
            raise ModelLoadError(f"{self.file.path} has no tensor token_embd.weight: it holds no whole language model.")
        if self.count("block_count") > len(self.file.tensors):
            raise ModelLoadError(f"{self.file.path} announces more layers than it has tensors: it is damaged.")
        heads = self.count("attention.head_count")
        token_id = self.file.metadata.get
        return {
            "vocab_size": self.file.tensors["token_embd.weight"].shape[0],
            "hidden_size": self.count("embedding_length"),
            "intermediate_size": self.count("feed_forward_length"),
            "num_hidden_layers": self.count("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.count("attention.head_count_kv", heads),
            "max_position_embeddings": self.count("context_length"),
            "rms_norm_eps": float(self.need("attention.layer_norm_rms_epsilon")),
            "tie_word_embeddings": not self.has_tensor("output.weight"),
            "bos_token_id": token_id("tokenizer.ggml.bos_token_id"),
            "eos_token_id": token_id("tokenizer.ggml.eos_token_id"),
            "pad_token_id": token_id("tokenizer.ggml.padding_token_id"),
        }

    def rope(self) -> dict[str, Any]:
        """rope_parameters; the factors of a tensor `rope_freqs` are applied to the built model instead."""
        scaling = self.get("rope.scaling.type", "none")
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": float(self.get("rope.freq_base", 10000.0))}
        rotated = self.count("rope.dimension_count", self.head_dim)
        if rotated > self.head_dim:
            raise ModelLoadError(
                f"{self.file.path} rotates {rotated} of {self.head_dim} values per head: it is damaged."
            )
        if rotated != self.head_dim:
            rope["partial_rotary_factor"] = rotated / self.head_dim
        if scaling == "none":
            return rope
        if scaling == "linear":
            return rope | {"rope_type": "linear", "factor": float(self.need("rope.scaling.factor"))}
        if scaling == "yarn":
            return rope | {
                "rope_type": "yarn",
                "factor": float(self.need("rope.scaling.factor")),
                "original_max_position_embeddings": self.count("rope.scaling.original_context_length"),
                "beta_fast": float(self.get("rope.scaling.yarn_beta_fast", 32.0)),
                "beta_slow": float(self.get("rope.scaling.yarn_beta_slow", 1.0)),
            }
        raise ModelLoadError(
            f"{self.file.path} scales its rotary embedding by {scaling!r}; none, linear and yarn are read from GGUF. "
            "Use safetensors."
        )


def _llama(keys: _Keys) -> PreTrainedConfig:
    return LlamaConfig(
        **keys.common(),
        head_dim=keys.head_dim,
        rope_parameters=keys.rope(),
        attention_bias=keys.has_tensor("blk.0.attn_q.bias"),
        mlp_bias=keys.has_tensor("blk.0.ffn_up.bias"),
    )


def _qwen2(keys: _Keys) -> PreTrainedConfig:
    if keys.head_dim * keys.count("attention.head_count") != keys.count("embedding_length"):
        raise ModelLoadError(f"{keys.file.path}: qwen2 with heads of {keys.head_dim} is not read; use safetensors.")
    return Qwen2Config(**keys.common(), rope_parameters=keys.rope())


def _qwen3(keys: _Keys) -> PreTrainedConfig:
    return Qwen3Config(**keys.common(), head_dim=keys.head_dim, rope_parameters=keys.rope())


def _query_scalar(keys: _Keys, layers_of_27b: int) -> int:
    """The 27B models scale queries by the hidden size per head, all others by the head size."""
    if keys.count("block_count") == layers_of_27b:
        return keys.count("embedding_length") // keys.count("attention.head_count")
    return keys.head_dim


def _layer_types(count: int, full_every: int) -> list[str]:
    return ["full_attention" if (i + 1) % full_every == 0 else "sliding_attention" for i in range(count)]


def _gemma2(keys: _Keys) -> PreTrainedConfig:
    return Gemma2Config(
        **keys.common(),
        head_dim=keys.head_dim,
        rope_parameters=keys.rope(),
        query_pre_attn_scalar=_query_scalar(keys, _GEMMA2_27B_LAYERS),
        sliding_window=keys.count("attention.sliding_window", 4096),
        layer_types=_layer_types(keys.count("block_count"), 2),
        attn_logit_softcapping=float(keys.get("attn_logit_softcapping", 50.0)),
        final_logit_softcapping=float(keys.get("final_logit_softcapping", 30.0)),
    )


def _gemma3(keys: _Keys) -> PreTrainedConfig:
    local = {"rope_type": "default", "rope_theta": float(keys.get("rope.freq_base_swa", _GEMMA3_LOCAL_ROPE_THETA))}
    return Gemma3TextConfig(
        **keys.common(),
        head_dim=keys.head_dim,
        rope_parameters={"full_attention": keys.rope(), "sliding_attention": local},
        query_pre_attn_scalar=_query_scalar(keys, _GEMMA3_27B_LAYERS),
        sliding_window=keys.count("attention.sliding_window"),
        layer_types=_layer_types(keys.count("block_count"), _GEMMA3_PATTERN),
        final_logit_softcapping=keys.get("final_logit_softcapping"),
    )


def _phi3(keys: _Keys) -> PreTrainedConfig:
    rope = keys.rope()
    original = keys.count("rope.scaling.original_context_length", keys.count("context_length"))
    if keys.has_tensor("rope_factors_short.weight"):
        factors = {
            f"{length}_factor": keys.file.tensors[f"rope_factors_{length}.weight"].dequantize().tolist()
            for length in ("short", "long")
        }
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": original} | factors
    return Phi3Config(
        **keys.common(),
        rope_parameters=rope,
        original_max_position_embeddings=original,
        sliding_window=keys.count("attention.sliding_window", 0) or None,
    )


_BUILDERS: dict[str, Callable[[_Keys], PreTrainedConfig]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
}
