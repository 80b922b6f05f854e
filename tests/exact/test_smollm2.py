"""The real model: the same tokens as transformers. A sample in the suite, all 64 prompts by `make test-exact`."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from jitney.models.embedded import embedded_model_path
from jitney.models.gguf_file import read_gguf
from jitney.models.gguf_weights import load_gguf
from jitney.text.tokenizer import Tokenizer

from .modes import COMBINED
from .prompts import exact_prompts
from .reference import Comparison, Reference, generate
from .running import compare

SAMPLE, SAMPLE_TOKENS = [0, 8, 12, 13, 14, 15, 24], 24
"""Prompts of 1, 21, 48, 63, 64, 65 and 300 tokens; without the last one they are alike enough to fight for blocks."""
FULL_TOKENS = 128


@cache
def smollm2() -> PreTrainedModel:
    return load_gguf(read_gguf(embedded_model_path()), torch.float32)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(embedded_model_path())


@pytest.fixture(scope="module")
def sample() -> list[Reference]:
    prompts = exact_prompts(tokenizer().encode)
    return [generate(smollm2(), prompts[index], SAMPLE_TOKENS) for index in SAMPLE]


@pytest.fixture(scope="module")
def everything() -> list[Reference]:
    return [generate(smollm2(), prompt, FULL_TOKENS) for prompt in exact_prompts(tokenizer().encode)]


@pytest.mark.parametrize("mode", ["async", "static sync", "chunks of 7"])
def test_a_sample_has_the_tokens_of_transformers(sample: list[Reference], mode: str) -> None:
    compare(smollm2(), sample, mode, num_seqs=3, tokenizer=tokenizer())


def test_the_fused_decoder_has_the_tokens_of_transformers(sample: list[Reference]) -> None:
    compare(embedded_model_path(), sample, "async", num_seqs=3)


@pytest.mark.parametrize("mode", ["async", "static sync", "chunks of 7"])
def test_the_native_kernels_have_the_tokens_of_transformers(sample: list[Reference], mode: str) -> None:
    compare(None, sample, mode, num_seqs=3)


def test_preemption_does_not_change_a_token(sample: list[Reference]) -> None:
    compare(smollm2(), sample[:-1], "tiny pool, sync, blocks of 1", num_seqs=3)


@pytest.fixture(scope="module")
def tally() -> Iterator[Comparison]:
    """Near ties over the whole run, printed at its end."""
    total = Comparison()
    yield total
    print(f"\n{total.num_tokens} tokens compared, {total.num_near_ties} near ties went the other way")
    total.check()


@pytest.mark.exact
@pytest.mark.parametrize("mode", [*COMBINED, "async, n=2"])
def test_all_prompts_have_the_tokens_of_transformers(everything: list[Reference], mode: str, tally: Comparison) -> None:
    name, n = (mode, 1) if mode in COMBINED else ("async", 2)
    result = compare(smollm2(), everything, name, num_seqs=32, n=n)
    print(f"{mode}: {result.num_tokens} tokens, {result.num_near_ties} near ties")
    tally.num_tokens += result.num_tokens
    tally.num_near_ties += result.num_near_ties
