"""Tiny models of every family the fused decoder knows, and of variants it must leave to transformers."""

from collections.abc import Callable
from pathlib import Path

import torch
from tests.models.tiny import MAX_POSITION_EMBEDDINGS, tiny_model
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    SmolLM3Config,
)

from jitney.models.decoder.load import KernelSettings
from jitney.models.decoder.model import FusedDecoder
from jitney.models.load import load_model

SMALL = {
    "vocab_size": 256,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TORCH = KernelSettings(cpu_kernels="torch")
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


def rope(kind: str, **parameters: float) -> dict[str, object]:
    return {"rope_type": kind, "rope_theta": 10000.0, **parameters}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
LINEAR = rope("linear", factor=2.0)

_OWN: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama_biases": lambda: LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama_one_kv_head": lambda: LlamaConfig(**SMALL | {"num_key_value_heads": 1}),
    "llama3_rope": lambda: LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "llama_linear_rope": lambda: LlamaConfig(**SMALL, rope_parameters=LINEAR),
    "qwen3_yarn": lambda: Qwen3Config(**SMALL, head_dim=16, rope_parameters=YARN),
    "qwen3_biases": lambda: Qwen3Config(**SMALL, head_dim=16, attention_bias=True),
    "gemma": lambda: GemmaConfig(**SMALL, head_dim=16),
    "gemma2_untied": lambda: Gemma2Config(**SMALL, head_dim=16, tie_word_embeddings=False, query_pre_attn_scalar=8),
    "gemma3_long": lambda: Gemma3TextConfig(
        **SMALL,
        head_dim=16,
        sliding_window=8,
        layer_types=ALTERNATING,
        query_pre_attn_scalar=24,
        final_logit_softcapping=5.0,
        rope_parameters={"full_attention": LINEAR, "sliding_attention": rope("default")},
    ),
    "smollm3_windows": lambda: SmolLM3Config(
        **SMALL, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=6
    ),
}
FUSED = ["llama", "llama_tied", "mistral", "qwen2", "qwen2_sliding", "qwen3", "gemma2", "gemma3", "smollm3", *_OWN]


def model_of(family: str) -> PreTrainedModel:
    """A float32 model on the CPU; the same weights at every call."""
    return from_config(_OWN[family]()) if family in _OWN else tiny_model(family)


def from_config(config: PreTrainedConfig) -> PreTrainedModel:
    """A random model whose biases and norms do not stand at constants that would hide a mistake in them."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def fused(model: PreTrainedModel, folder: Path, dtype: str = "float32") -> FusedDecoder:
    """The model saved and loaded again, as a fused decoder."""
    model.save_pretrained(folder)
    loaded = load_model(folder, dtype, kernels=TORCH).model  # type: ignore[arg-type]
    assert isinstance(loaded, FusedDecoder)
    return loaded
