"""Runs the engine in one mode and holds every output against the oracle."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from jitney import LLM, SamplingParams

from .modes import settings
from .reference import Comparison, Reference


def compare(
    model: PreTrainedModel | Path | None,
    expected: list[Reference],
    mode: str,
    num_seqs: int,
    n: int = 1,
    tokenizer: Any = None,
) -> Comparison:
    """Generate from the prompts of `expected` in float32, greedy; fails at the first difference that is no near tie.

    Without a model the embedded one is loaded, and computed as it is by default.
    """
    num_tokens = len(expected[0].tokens)
    longest = max(len(reference.prompt) for reference in expected) + num_tokens
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, n=n)
    with LLM(model, tokenizer=tokenizer, dtype="float32", **settings(mode, longest, num_seqs)) as llm:
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
            comparison.add(reference, completion.token_ids, f"{mode}, prompt of {len(reference.prompt)}")
    comparison.check()
    return comparison
