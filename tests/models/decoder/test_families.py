"""What the fused decoder does not know exactly is left to transformers, and answered rightly there."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.models.decoder.families import ALTERNATING, FUSED, LLAMA3, SMALL, TORCH, YARN, from_config, model_of, rope
from tests.models.driver import generate
from tests.models.tiny import tiny_model
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from jitney.models.decoder.families import decoder_config
from jitney.models.load import load_model
from jitney.models.transformers_model import TransformersModel

PROMPTS = [[5, 9, 200], [17], list(range(3, 40))]


class OwnLlamaConfig(LlamaConfig):
    model_type = "llama"


def with_attribute(config: PreTrainedConfig, name: str, value: object) -> PreTrainedConfig:
    setattr(config, name, value)
    return config


UNKNOWN: dict[str, Callable[[], PreTrainedConfig]] = {
    "dynamic rope": lambda: LlamaConfig(**SMALL, rope_parameters=rope("dynamic", factor=2.0)),
    "unheard-of rope": lambda: with_attribute(LlamaConfig(**SMALL), "rope_parameters", rope("spiral")),
    "partial rope": lambda: LlamaConfig(**SMALL, rope_parameters=rope("linear", factor=2.0, partial_rotary_factor=0.5)),
    "another activation": lambda: LlamaConfig(**SMALL, hidden_act="relu"),
    "exact gelu": lambda: Gemma2Config(**SMALL, head_dim=16, hidden_activation="gelu"),
    "a subclass": lambda: OwnLlamaConfig(**SMALL),
    "Mixtral": lambda: MixtralConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1),
    "Qwen2 MoE": lambda: Qwen2MoeConfig(**SMALL, num_experts=2, num_experts_per_tok=1),
    "Qwen3 MoE": lambda: Qwen3MoeConfig(**SMALL, num_experts=2, num_experts_per_tok=1),
    "Phi3": lambda: Phi3Config(**SMALL),
    "Olmo2": lambda: Olmo2Config(**SMALL),
    "a Llama with windows": lambda: LlamaConfig(**SMALL, sliding_window=8),
    "a Llama with layer types": lambda: LlamaConfig(**SMALL, layer_types=ALTERNATING, sliding_window=8),
    "a Mistral with layer types": lambda: MistralConfig(**SMALL, layer_types=ALTERNATING),
    "chunked attention": lambda: Qwen2Config(**SMALL, layer_types=["chunked_attention"] * 3),
    "windows without a length": lambda: with_attribute(
        Gemma2Config(**SMALL, head_dim=16, layer_types=ALTERNATING), "sliding_window", None
    ),
    "SmolLM3 windows that are off": lambda: SmolLM3Config(**SMALL, layer_types=ALTERNATING, sliding_window=8),
    "bidirectional Gemma": lambda: GemmaConfig(**SMALL, head_dim=16, use_bidirectional_attention=True),
    "Gemma 3 with a soft cap on its scores": lambda: Gemma3TextConfig(**SMALL, head_dim=16, attn_logit_softcapping=9.0),
    "quantised weights": lambda: with_attribute(LlamaConfig(**SMALL), "quantization_config", {"quant_method": "fp8"}),
    "shared KV": lambda: with_attribute(LlamaConfig(**SMALL), "num_kv_shared_layers", 1),
}


@pytest.mark.parametrize("reason", UNKNOWN)
def test_what_is_not_known_exactly_is_not_guessed(reason: str) -> None:
    assert decoder_config(UNKNOWN[reason]()) is None


@pytest.mark.parametrize("family", FUSED)
def test_a_config_and_its_dict_say_the_same(family: str) -> None:
    config = model_of(family).config
    assert decoder_config(config) is not None
    assert decoder_config(config.to_dict()) == decoder_config(config)


@pytest.mark.parametrize("contents", [{}, {"model_type": "mamba"}, {"model_type": "qwen3_moe"}])
def test_a_dict_of_another_family_is_unknown(contents: dict[str, object]) -> None:
    assert decoder_config(contents) is None


@pytest.mark.parametrize(
    "reason", ["dynamic rope", "another activation", "a Llama with windows", "Mixtral", "Phi3", "Olmo2", "Qwen3 MoE"]
)
def test_unknown_variants_run_through_transformers_with_its_tokens(reason: str, tmp_path: Path) -> None:
    model = from_config(UNKNOWN[reason]())
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, kernels=TORCH).model
    assert isinstance(loaded, TransformersModel)
    assert generate(loaded, PROMPTS, 6, 16) == generate(TransformersModel(model), PROMPTS, 6, 16)


@pytest.mark.parametrize("name", ["gpt2", "gpt_oss", "deepseek_v3"])
def test_other_families_run_through_transformers(name: str, tmp_path: Path) -> None:
    tiny_model(name).save_pretrained(tmp_path)
    assert isinstance(load_model(tmp_path).model, TransformersModel)


@pytest.mark.parametrize(
    "parameters", [rope("default"), rope("linear", factor=3.0), LLAMA3, YARN], ids=lambda p: p["rope_type"]
)
def test_rotation_tables_are_those_of_transformers(parameters: dict[str, object]) -> None:
    model = from_config(LlamaConfig(**SMALL, rope_parameters=parameters))
    known = decoder_config(model.config)
    assert known is not None
    cos, sin = known.layers[0].rope.tables(512, torch.device("cpu"))
    expected = model.model.rotary_emb(torch.zeros(1), torch.arange(512)[None])
    for ours, theirs in zip((cos, sin), expected, strict=True):
        torch.testing.assert_close(ours, theirs[0, :, : ours.shape[1]], rtol=0, atol=1e-7)


def test_gemma_3_rotates_its_windows_by_another_base() -> None:
    known = decoder_config(Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8, layer_types=ALTERNATING))
    assert known is not None
    local, wide, again = known.layers
    assert (local.sliding_window, wide.sliding_window) == (8, None)
    assert local == again and local.rope.frequencies[1] > wide.rope.frequencies[1]
