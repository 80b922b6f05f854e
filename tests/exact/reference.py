"""The oracle, transformers' `generate` in float32, greedy, one prompt at a time, and how outputs are held to it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

NEAR_TIE = 1e-4
"""A token may differ only where the reference's two best logits are closer than this."""


@dataclass(frozen=True)
class Reference:
    """What the oracle says after one prompt. gaps[i]: its best logit minus its second best at output i."""

    prompt: list[int]
    tokens: list[int]
    gaps: list[float]


@dataclass
class Comparison:
    """Tokens compared so far, and where a near tie went the other way."""

    num_tokens: int = 0
    num_near_ties: int = 0

    def add(self, reference: Reference, tokens: Sequence[int], label: str) -> None:
        """Hold one output against the oracle. After a near tie that went the other way the rest is not comparable."""
        assert len(tokens) == len(reference.tokens), f"{label}: {len(tokens)} tokens, not {len(reference.tokens)}"
        for index, (ours, theirs) in enumerate(zip(tokens, reference.tokens, strict=True)):
            self.num_tokens += 1
            if ours != theirs:
                gap = reference.gaps[index]
                assert gap < NEAR_TIE, f"{label}: output {index} is {ours}, not {theirs}; the top-2 gap is {gap:.2e}"
                self.num_near_ties += 1
                return

    def check(self) -> None:
        assert self.num_near_ties * 1000 <= self.num_tokens, (
            f"{self.num_near_ties} near ties in {self.num_tokens} tokens"
        )


def generate(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> Reference:
    """`num_tokens` greedy tokens, end-of-text ignored."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
            repetition_penalty=1.0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = [torch.topk(logits[0].float(), 2).values for logits in result.logits]
    gaps = [float(values[0] - values[1]) for values in best]
    return Reference(prompt, result.sequences[0, len(prompt) :].tolist(), gaps)
