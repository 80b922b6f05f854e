"""Tiny randomly initialised models, one for each family that Jitney verifies. Importable as `models.tiny`."""

from collections.abc import Callable

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

VOCAB_SIZE = 256
MAX_POSITION_EMBEDDINGS = 512

_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Wide enough that the logits of a random model differ clearly from one token to the next.
    "initializer_range": 0.2,
}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]

_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "llama_tied": lambda: LlamaConfig(**_COMMON, tie_word_embeddings=True, head_dim=16),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=9),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen2_sliding": lambda: Qwen2Config(**_COMMON, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**_COMMON, head_dim=16),
    "gemma2": lambda: Gemma2Config(
        **_COMMON,
        head_dim=16,
        sliding_window=8,
        layer_types=_ALTERNATING,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **_COMMON, head_dim=16, sliding_window=8, layer_types=_ALTERNATING, query_pre_attn_scalar=16
    ),
    "phi3": lambda: Phi3Config(**_COMMON, original_max_position_embeddings=MAX_POSITION_EMBEDDINGS),
    "gpt_neox": lambda: GPTNeoXConfig(**_COMMON | {"num_key_value_heads": 4}, rotary_pct=0.5),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_positions=MAX_POSITION_EMBEDDINGS,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    ),
    "olmo2": lambda: Olmo2Config(**_COMMON),
    "smollm3": lambda: SmolLM3Config(**_COMMON, no_rope_layer_interval=2),
    "gpt_oss": lambda: GptOssConfig(
        **_COMMON,
        head_dim=16,
        sliding_window=8,
        layer_types=_ALTERNATING,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "deepseek_v3": lambda: DeepseekV3Config(
        **_COMMON | {"num_key_value_heads": 4},
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
}

FAMILIES = list(_CONFIGS)


def tiny_model(family: str) -> PreTrainedModel:
    """A float32 model of the family on the CPU, in evaluation mode; the same weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(FAMILIES.index(family))
        model: PreTrainedModel = AutoModelForCausalLM.from_config(_CONFIGS[family](), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                # Biases, sinks and norms start at constants that would hide a mistake in them.
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()
