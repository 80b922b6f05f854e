"""Repetition, presence and frequency penalties over the whole history of one slot. Knows one row of logits at a time.

The counts live on the device, because the host does not know a token yet when the next step is submitted.
"""

from dataclasses import dataclass

import torch

from jitney.sampling_params import SamplingParams
from jitney.types import Int32


@dataclass(frozen=True, slots=True)
class TokenHistory:
    """Which tokens a slot's sequence holds."""

    in_prompt: torch.Tensor
    """[V] bool: the token stands in the prompt."""
    output_counts: torch.Tensor
    """[V] int32: how often the token stands in the output."""

    @classmethod
    def of(cls, prompt: Int32, output: Int32, vocab_size: int, device: torch.device) -> "TokenHistory":
        """History of a sequence of which `output` ([n] int32) is generated already."""
        in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        in_prompt[_index(prompt, device)] = True
        counts = torch.bincount(_index(output, device), minlength=vocab_size).to(torch.int32)
        return cls(in_prompt, counts)

    def append(self, token_id: torch.Tensor) -> None:
        """Count one more output token ([1] int64, on the device)."""
        self.output_counts.index_add_(0, token_id, torch.ones_like(token_id, dtype=torch.int32))


def apply_penalties(logits: torch.Tensor, history: TokenHistory, params: SamplingParams) -> None:
    """Penalise one row of logits ([V] float32) in place.

    Repetition (Keskar et al., "CTRL", 2019) comes first and covers prompt and output: positive logits are divided by
    it, the others multiplied. Frequency (times the count) and presence (once) cover the output only.
    """
    if params.repetition_penalty != 1.0:
        seen = history.in_prompt | (history.output_counts > 0)
        penalty = params.repetition_penalty
        penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits.copy_(torch.where(seen, penalised, logits))
    if params.frequency_penalty:
        logits -= params.frequency_penalty * history.output_counts
    if params.presence_penalty:
        logits -= params.presence_penalty * (history.output_counts > 0)


def _index(token_ids: Int32, device: torch.device) -> torch.Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=device)
