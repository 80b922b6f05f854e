"""Every family, every mode: the same tokens as transformers, on tiny random models in float32."""

import random
from functools import cache

import pytest

from jitney import LLM, SamplingParams
from tests.models.tiny import FAMILIES, tiny_model

from .modes import MODES, settings
from .reference import Comparison, Reference, generate

NUM_TOKENS = 24
LENGTHS = [1, 2, 7, 16, 33, 50, 9, 24]
LONGEST = max(LENGTHS) + NUM_TOKENS


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


def run(family: str, mode: str, n: int = 1) -> None:
    expected = references(family)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, n=n)
    with LLM(tiny_model(family), dtype="float32", **settings(mode, LONGEST, num_seqs=4)) as llm:
        prompts = [{"prompt_token_ids": reference.prompt} for reference in expected]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        pool = llm.engine.scheduler.seating.pool
        assert pool.num_free == pool.num_blocks
        if "tiny pool" in mode:
            assert llm.engine.scheduler.num_preemptions > 0
    comparison = Comparison()
    for reference, output in zip(expected, outputs, strict=True):
        assert len(output.outputs) == n
        for completion in output.outputs:
            comparison.add(reference, completion.token_ids, f"{family}, prompt of {len(reference.prompt)}")
    comparison.check()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_transformers(family: str, mode: str) -> None:
    run(family, mode)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_outputs_of_one_prompt_are_each_those_of_transformers(family: str) -> None:
    run(family, "async", n=3)
