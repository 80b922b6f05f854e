"""Every family the fused decoder knows gives what transformers gives, over ragged batches and a paged cache."""

import random
from pathlib import Path

import pytest
import torch
from tests.models.decoder.families import FUSED, fused, model_of
from tests.models.driver import Sequence, generate, make_batch, nan_cache
from transformers import PreTrainedModel

LENGTHS = (1, 3, 20, 45)
NEW_TOKENS = 10


def prompts(seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(3, 256) for _ in range(length)] for length in LENGTHS]


def reference(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def logits_in_steps(decoder, ids: list[int], cuts: list[int], block_size: int) -> torch.Tensor:
    """The logits of all positions, computed in chunks that end at `cuts`, beside a row of another request."""
    num_blocks = -(-len(ids) // block_size)
    cache = nan_cache(decoder.spec, 2 * num_blocks + 1, block_size)
    order = random.Random(3).sample(range(1, 2 * num_blocks + 1), 2 * num_blocks)
    own, other = (
        Sequence(ids, len(ids), blocks=order[:num_blocks]),
        Sequence(ids[::-1], len(ids), blocks=order[num_blocks:]),
    )
    found = []
    for end in cuts:
        length = end - own.computed
        batch = make_batch([(other, 1), (own, length)], block_size)
        token_ids = torch.tensor([other.tokens[other.computed], *ids[own.computed : end]])
        found.append(decoder.forward(token_ids, batch, cache, torch.arange(1, length + 1)))
        own.computed, other.computed = end, other.computed + 1
    return torch.cat(found)


@pytest.mark.parametrize("family", FUSED)
def test_greedy_tokens_equal_generate(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    decoder = fused(model, tmp_path)
    expected = [reference(model, prompt) for prompt in prompts(5)]
    for block_size in (3, 16):
        assert generate(decoder, prompts(5), NEW_TOKENS, block_size, seed=block_size) == expected, block_size


@pytest.mark.parametrize("family", FUSED)
def test_every_position_has_the_logits_of_a_full_forward_pass(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    ids = prompts(6)[3]
    with torch.inference_mode():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]
    got = logits_in_steps(fused(model, tmp_path), ids, [17, 18, 19, 40, 45], block_size=4)
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma", "gemma3"])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    ids = prompts(6)[3]
    decoder = fused(model, tmp_path, dtype="bfloat16")
    assert decoder.spec.dtype is torch.bfloat16
    with torch.inference_mode():
        exact = model(torch.tensor([ids]), use_cache=False).logits[0]
        theirs = model.to(torch.bfloat16)(torch.tensor([ids]), use_cache=False).logits[0].float()
    ours = logits_in_steps(decoder, ids, [17, 45], block_size=16)
    assert (ours - exact).pow(2).mean() <= 1.5 * (theirs - exact).pow(2).mean()


def test_a_step_without_wanted_logits_still_writes_its_keys_and_values(tmp_path: Path) -> None:
    decoder = fused(model_of("gemma2"), tmp_path)
    ids = prompts(6)[2]
    cache = nan_cache(decoder.spec, 3, 16)
    sequence = Sequence(ids, len(ids), blocks=[2, 1])
    none = decoder.forward(
        torch.tensor(ids[:-1]), make_batch([(sequence, len(ids) - 1)], 16), cache, torch.empty(0, dtype=torch.int64)
    )
    assert none.shape == (0, 256)
    sequence.computed = len(ids) - 1
    last = decoder.forward(torch.tensor(ids[-1:]), make_batch([(sequence, 1)], 16), cache, torch.tensor([0]))
    whole = logits_in_steps(decoder, ids, [len(ids)], block_size=16)
    torch.testing.assert_close(last[0], whole[-1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("family", ["llama_tied", "qwen2_sliding", "gemma3"])
def test_the_spec_is_that_of_the_transformers_path(family: str, tmp_path: Path) -> None:
    from dataclasses import replace

    from jitney.models.transformers_model import TransformersModel

    model = model_of(family)
    spec = fused(model, tmp_path).spec
    assert spec.name == str(tmp_path)
    assert replace(spec, name="") == replace(TransformersModel(model).spec, name="")
