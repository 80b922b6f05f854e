"""Every family, token for token against transformers' own generate; and the caller's model is left as it was."""

import copy
import random

import pytest
import torch
from tests.models.driver import Sequence, generate, make_batch, nan_cache
from tests.models.tiny import FAMILIES, MAX_POSITION_EMBEDDINGS, VOCAB_SIZE, tiny_model
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    JambaConfig,
    LlamaConfig,
    LlamaModel,
    MambaConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3NextConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from jitney.errors import ModelLoadError
from jitney.models.transformers_model import TransformersModel

LENGTHS = (1, 3, 20, 45)
NEW_TOKENS = 12


def prompts(seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def reference(model: PreTrainedModel, prompt: list[int], max_new_tokens: int = NEW_TOKENS) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=max_new_tokens,
        min_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate(family: str) -> None:
    model = tiny_model(family)
    expected = [reference(model, prompt) for prompt in prompts(5)]
    for block_size in (1, 3, 16):
        got = generate(TransformersModel(model), prompts(5), NEW_TOKENS, block_size, seed=block_size)
        assert got == expected, f"block_size={block_size}"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_position_has_the_logits_of_a_full_forward(family: str) -> None:
    model = tiny_model(family)
    paged = TransformersModel(model)
    ids = torch.tensor(prompts(6)[3])
    with torch.inference_mode():
        expected = model(ids[None], use_cache=False).logits[0]
    sequence = Sequence(ids.tolist(), len(ids), blocks=[2, 5, 1, 4])
    cache = nan_cache(paged.spec, 6, 16)
    batch = make_batch([(sequence, len(ids))], 16)
    got = paged.forward(ids, batch, cache, torch.arange(len(ids)))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def _state(model: PreTrainedModel) -> tuple[object, ...]:
    modules = [(name, type(module), module.training, sorted(vars(module))) for name, module in model.named_modules()]
    tensors = [(name, id(t), t.data_ptr(), t._version, t.requires_grad) for name, t in model.state_dict().items()]
    parameters = [(name, id(p), p.requires_grad, p._version) for name, p in model.named_parameters()]
    buffers = [(name, id(b), b._version) for name, b in model.named_buffers()]
    return modules, [t[0] for t in tensors], parameters, buffers, copy.deepcopy(model.config.to_dict())


@pytest.mark.parametrize("family", ["llama_tied", "gemma3", "gpt_oss"])
def test_the_callers_model_is_untouched_even_in_training_mode(family: str) -> None:
    model = tiny_model(family).train()
    before, attention = _state(model), model.config._attn_implementation
    generate(TransformersModel(model), prompts(1), 3, 16)
    assert _state(model) == before
    assert model.config._attn_implementation == attention
    loss = model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss
    loss.backward()


def test_weights_updated_in_place_are_seen() -> None:
    model = tiny_model("llama")
    paged = TransformersModel(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.7)
    assert generate(paged, prompts(2), NEW_TOKENS, 16) == [reference(model, prompt) for prompt in prompts(2)]


def test_weights_are_shared_not_copied() -> None:
    model = tiny_model("llama_tied")
    shared = {p.data_ptr() for p in TransformersModel(model)._model.parameters()}
    assert shared == {p.data_ptr() for p in model.parameters()}


def test_bfloat16_model_gives_float32_logits_and_keeps_its_dtype() -> None:
    paged = TransformersModel(tiny_model("llama").to(torch.bfloat16))
    assert paged.spec.dtype is torch.bfloat16
    assert len(generate(paged, prompts(3), 2, 16)[0]) == 2


def test_spec_counts_parameters_and_cache_bytes() -> None:
    model = tiny_model("llama_tied")
    spec = TransformersModel(model).spec
    assert spec.num_parameters == model.num_parameters()
    assert spec.kv_bytes_per_token() == 3 * 2 * 2 * 16 * 4
    assert (spec.vocab_size, spec.max_position_embeddings) == (VOCAB_SIZE, MAX_POSITION_EMBEDDINGS)
    assert spec.architecture == "LlamaForCausalLM"


SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def longrope() -> PreTrainedModel:
    torch.manual_seed(0)
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.5] * 4,
        "long_factor": [9.0] * 4,
        "original_max_position_embeddings": 64,
    }
    config = Phi3Config(**SMALL, max_position_embeddings=256, original_max_position_embeddings=64, rope_parameters=rope)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def test_longrope_is_served_up_to_its_original_length_and_exact_there() -> None:
    model = longrope()
    paged = TransformersModel(model)
    assert paged.spec.max_position_embeddings == 64
    expected = [reference(model, prompt) for prompt in prompts(4)]
    assert generate(paged, prompts(4), NEW_TOKENS, 16) == expected
    # The caller may use the long frequencies meanwhile: transformers switches them in place, for all later calls.
    model(torch.randint(3, VOCAB_SIZE, (1, 100)))
    assert generate(paged, prompts(4), NEW_TOKENS, 16) == expected


def test_a_longrope_model_that_last_saw_a_long_text_starts_with_its_short_frequencies() -> None:
    model = longrope()
    expected = [reference(model, prompt) for prompt in prompts(4)]
    model(torch.randint(3, VOCAB_SIZE, (1, 100)))
    assert generate(TransformersModel(model), prompts(4), NEW_TOKENS, 16) == expected


def test_dynamic_rope_does_not_depend_on_batch_mates() -> None:
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, max_position_embeddings=64, rope_parameters=rope))
    expected = [reference(model.eval(), prompt) for prompt in prompts(4)]
    model(torch.randint(3, VOCAB_SIZE, (1, 100)))
    paged = TransformersModel(model)
    assert paged.spec.max_position_embeddings == 64
    assert generate(paged, prompts(4), NEW_TOKENS, 16) == expected


def from_config(config: PreTrainedConfig) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(config)


REFUSED = {
    "encoder-decoder": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=64, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2)
    ),
    "linear_attention, which keep": lambda: from_config(
        MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1)
    ),
    "linear_attention": lambda: from_config(
        Qwen3NextConfig(**SMALL, num_experts=2, num_experts_per_tok=1, layer_types=["linear_attention"] * 2)
    ),
    "mamba|linear|recurrent": lambda: from_config(
        JambaConfig(**SMALL, attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False)
    ),
    "attention interface": lambda: from_config(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)),
    "ALiBi": lambda: from_config(
        FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    ),
    "no language-model head": lambda: LlamaModel(LlamaConfig(**SMALL)),
    "float64": lambda: from_config(LlamaConfig(**SMALL)).double(),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_models_that_cannot_be_served_exactly_are_refused_with_the_reason(reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        TransformersModel(REFUSED[reason]())


def test_layers_that_share_the_kv_of_others_are_refused() -> None:
    model = tiny_model("llama")
    model.config.num_kv_shared_layers = 1
    with pytest.raises(ModelLoadError, match="share the K and V"):
        TransformersModel(model)


def test_bidirectional_attention_is_refused() -> None:
    model = tiny_model("gemma3")
    model.config.use_bidirectional_attention = True
    with pytest.raises(ModelLoadError, match="bidirectional"):
        TransformersModel(model)
