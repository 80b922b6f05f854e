"""Rules that name single tokens: allowed ids, bad ids, logit bias, no stop before min_tokens. One row at a time.

Token ids outside the vocabulary are passed over: they cannot be sampled, so there is nothing to forbid or favour.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from jitney.device.transfer import to_device
from jitney.types import SlotAdmission


@dataclass(frozen=True, slots=True)
class LogitRules:
    """The rules of one slot; index tensors are int64 on the device, None or empty where a rule is not in use."""

    allowed: torch.Tensor | None
    bad: torch.Tensor
    bias_ids: torch.Tensor
    bias: torch.Tensor
    """[len(bias_ids)] float32"""
    stop: torch.Tensor
    min_position: int
    """Stop tokens are forbidden at positions below this."""

    @classmethod
    def of(cls, admission: SlotAdmission, vocab_size: int, device: torch.device) -> "LogitRules | None":
        """The request's rules, or None if it has none (the usual case)."""
        params = admission.params
        stop = admission.stop_token_ids if params.min_tokens else ()
        if params.allowed_token_ids is None and not (len(params.bad_token_ids) or params.logit_bias or stop):
            return None

        def index(ids: Iterable[int]) -> torch.Tensor:
            return to_device(np.array([i for i in ids if i < vocab_size], np.int64), device)

        biases = [bias for token, bias in params.logit_bias.items() if token < vocab_size]
        return cls(
            allowed=None if params.allowed_token_ids is None else index(params.allowed_token_ids),
            bad=index(params.bad_token_ids),
            bias_ids=index(params.logit_bias),
            bias=to_device(np.array(biases, np.float32), device),
            stop=index(stop),
            min_position=len(admission.prompt_token_ids) + params.min_tokens,
        )

    def apply(self, logits: torch.Tensor, position: int) -> None:
        """Change one row of logits ([V] float32) in place; `position` is where the sampled token will stand."""
        if self.allowed is not None:
            kept = logits[self.allowed]
            logits.fill_(-torch.inf)
            logits[self.allowed] = kept
        logits[self.bias_ids] += self.bias
        logits[self.bad] = -torch.inf
        if position < self.min_position:
            logits[self.stop] = -torch.inf
