"""Every family, every mode: the same tokens as transformers, on tiny random models in float32."""

import random
from functools import cache
from pathlib import Path

import pytest

from tests.models.tiny import FAMILIES, tiny_model
from tests.toy_llm import toy_tokenizer

from .modes import MODES
from .reference import Reference, generate
from .running import compare

NUM_TOKENS = 24
FUSED = ["llama", "llama_tied", "mistral", "qwen2", "qwen2_sliding", "qwen3", "gemma2", "gemma3", "smollm3"]
LENGTHS = [1, 2, 7, 16, 33, 50, 9, 24]


@cache
def references(family: str) -> list[Reference]:
    """Prompts of many lengths, some of which start alike."""
    model = tiny_model(family)
    draw = random.Random(family)
    shared = [draw.randrange(3, model.config.vocab_size) for _ in range(40)]
    found = []
    for index, length in enumerate(LENGTHS):
        own = [draw.randrange(3, model.config.vocab_size) for _ in range(length)]
        prompt = shared[: length // 2] + own[length // 2 :] if index % 2 else own
        found.append(generate(model, prompt, NUM_TOKENS))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_transformers(family: str, mode: str) -> None:
    compare(tiny_model(family), references(family), mode, num_seqs=4)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_outputs_of_one_prompt_are_each_those_of_transformers(family: str) -> None:
    compare(tiny_model(family), references(family), "async", num_seqs=4, n=3)


@pytest.mark.parametrize("family", FUSED)
def test_the_fused_decoder_has_the_tokens_of_transformers(family: str, tmp_path: Path) -> None:
    tiny_model(family).save_pretrained(tmp_path)
    for mode in ("async", "chunks of 7", "tiny pool, sync, blocks of 1"):
        compare(tmp_path, references(family), mode, num_seqs=4, tokenizer=toy_tokenizer())
