"""The native decoder against transformers: every family it serves, every instruction set that this machine has."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.models.decoder.families import ALTERNATING, LINEAR, LLAMA3, SMALL, YARN, from_config, rope
from tests.models.decoder.test_model import NEW_TOKENS, logits_in_steps, prompts, reference
from tests.models.driver import Sequence, generate, make_batch, nan_cache
from tests.models.native_model import PagedNative
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from jitney.kernels.native.library import library
from jitney.models.decoder.checkpoint import SafetensorsFolder
from jitney.models.decoder.families import decoder_config
from jitney.models.decoder.native import NativeDecoder, why_not_native

ISAS = ["generic", "avx2", "avx512", "avx512bf16"]
WIDE = SMALL | {"hidden_size": 64, "intermediate_size": 80, "vocab_size": 259}
"""Heads of 16, as the native code wants; products that do not fill their last panel."""
FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**WIDE, rope_parameters=LLAMA3),
    "llama_tied": lambda: LlamaConfig(**WIDE, tie_word_embeddings=True, rope_parameters=LINEAR),
    "llama_one_kv_head": lambda: LlamaConfig(**WIDE | {"num_key_value_heads": 1}),
    "mistral": lambda: MistralConfig(**WIDE, sliding_window=8),
    "qwen2": lambda: Qwen2Config(**WIDE),
    "qwen3": lambda: Qwen3Config(**WIDE, head_dim=32, rope_parameters=YARN),
    "gemma": lambda: GemmaConfig(**WIDE, head_dim=48),
    "gemma2": lambda: Gemma2Config(**WIDE, head_dim=16, query_pre_attn_scalar=8, sliding_window=8),
    "gemma3": lambda: Gemma3TextConfig(
        **WIDE,
        head_dim=80,
        sliding_window=8,
        layer_types=ALTERNATING,
        final_logit_softcapping=5.0,
        rope_parameters={"full_attention": LINEAR, "sliding_attention": rope("default")},
    ),
    "smollm3": lambda: SmolLM3Config(**WIDE, no_rope_layer_interval=2),
}


def isas() -> list[str]:
    loaded = library()
    assert loaded is not None, "the native library was not built"
    return [isa for isa in ISAS if loaded.jitney_isa(isa.encode())]


def native(model: PreTrainedModel, folder: Path, isa: str = "", dtype: torch.dtype = torch.float32) -> PagedNative:
    model.save_pretrained(folder)
    config = decoder_config(model.config)
    assert config is not None and why_not_native(config, dtype, 16) is None
    source = SafetensorsFolder(folder, torch.device("cpu"))
    return PagedNative(NativeDecoder(config, source, dtype, num_threads=2, isa=isa))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_position_has_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    model = from_config(FAMILIES[family]())
    ids = prompts(6)[3]
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    for isa in isas():
        got = logits_in_steps(native(model, tmp_path, isa), ids, [17, 18, 19, 40, 45], block_size=16)
        torch.testing.assert_close(got, expected, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate(family: str, tmp_path: Path) -> None:
    model = from_config(FAMILIES[family]())
    expected = [reference(model, prompt) for prompt in prompts(5)]
    assert generate(native(model, tmp_path), prompts(5), NEW_TOKENS, 16, seed=16) == expected


@pytest.mark.parametrize("family", ["llama", "gemma", "gemma3"])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(family: str, tmp_path: Path) -> None:
    model = from_config(FAMILIES[family]())
    ids = prompts(6)[3]
    decoders = [native(model, tmp_path, isa, torch.bfloat16) for isa in isas()]
    with torch.inference_mode():
        exact = model(torch.tensor([ids]), use_cache=False).logits[0]
        theirs = model.to(torch.bfloat16)(torch.tensor([ids]), use_cache=False).logits[0].float()
    for decoder in decoders:
        ours = logits_in_steps(decoder, ids, [17, 45], block_size=16)
        assert (ours - exact).pow(2).mean() <= 1.5 * (theirs - exact).pow(2).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_do_not_depend_on_chunks_or_on_the_rows_beside_them(dtype: torch.dtype, tmp_path: Path) -> None:
    for family in ("llama", "gemma3"):
        model = from_config(FAMILIES[family]())
        ids = prompts(6)[3]
        for isa in isas():
            decoder = native(model, tmp_path, isa, dtype)
            whole = logits_in_steps(decoder, ids, [45], block_size=16)
            for cuts in ([1, 2, 3, 45], [16, 17, 33, 44, 45], list(range(1, 46))):
                assert torch.equal(logits_in_steps(decoder, ids, cuts, block_size=32), whole), (family, isa, cuts)


def test_gates_far_below_zero_close(tmp_path: Path) -> None:
    """SiLU of large negative numbers is zero, not garbage from an exponent that overflowed."""
    model = from_config(FAMILIES["llama"]())
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight.mul_(300.0)
    ids = prompts(6)[3]
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    for isa in isas():
        got = logits_in_steps(native(model, tmp_path, isa), ids, [45], block_size=16)
        torch.testing.assert_close(got, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("where", ["lm_head", "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"])
def test_nan_weights_give_nan_logits_whatever_caps_them(where: str, tmp_path: Path) -> None:
    model = from_config(Gemma2Config(**WIDE, head_dim=16, final_logit_softcapping=5.0, tie_word_embeddings=False))
    with torch.no_grad():
        model.get_submodule(where).weight[3, 3] = torch.nan
    for dtype in (torch.float32, torch.bfloat16):
        for isa in isas():
            got = logits_in_steps(native(model, tmp_path, isa, dtype), prompts(6)[2], [20], block_size=16)
            assert got.isnan().any(-1).all(), (isa, dtype)


def test_a_step_without_wanted_logits_still_writes_its_keys_and_values(tmp_path: Path) -> None:
    decoder = native(from_config(FAMILIES["gemma2"]()), tmp_path)
    ids = prompts(6)[2]
    cache = nan_cache(decoder.spec, 3, 16)
    sequence = Sequence(ids, len(ids), blocks=[2, 1])
    none = decoder.forward(
        torch.tensor(ids[:-1]), make_batch([(sequence, len(ids) - 1)], 16), cache, torch.empty(0, dtype=torch.int64)
    )
    assert none.shape == (0, 259)
    sequence.computed = len(ids) - 1
    last = decoder.forward(torch.tensor(ids[-1:]), make_batch([(sequence, 1)], 16), cache, torch.tensor([0]))
    assert torch.equal(last[0], logits_in_steps(decoder, ids, [len(ids)], block_size=16)[-1])


def test_what_the_native_code_does_not_serve_is_named() -> None:
    fits = decoder_config(LlamaConfig(**WIDE))
    odd = decoder_config(LlamaConfig(**SMALL))
    biased = decoder_config(LlamaConfig(**WIDE, attention_bias=True))
    assert fits is not None and odd is not None and biased is not None
    assert why_not_native(fits, torch.float32, 16) is None
    assert "float16" in str(why_not_native(fits, torch.float16, 16))
    assert "block_size=8" in str(why_not_native(fits, torch.float32, 8))
    assert "48" in str(why_not_native(odd, torch.float32, 16))
    assert "biases" in str(why_not_native(biased, torch.float32, 16))
