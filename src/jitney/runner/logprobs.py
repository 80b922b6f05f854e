"""Log-probabilities of given tokens under raw logits, with ranks and the most likely alternatives. Stateless."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jitney.types import LogprobRows

_MAX_ELEMENTS = 2**22
"""Logits turned into log-probabilities at once; bounds the extra memory of a long prompt's logprobs."""


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """LogprobRows, still on the device (same shapes; int64 ids and ranks)."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_token_ids: torch.Tensor
    top_logprobs: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        return [self.token_ids, self.logprobs, self.ranks, self.top_token_ids, self.top_logprobs]

    @staticmethod
    def assemble(arrays: Iterator[NDArray[Any]]) -> LogprobRows:
        """The rows on the host, from copies of `tensors()`; takes as many from `arrays` and no more."""
        return LogprobRows(
            token_ids=next(arrays).astype(np.int32),
            logprobs=next(arrays),
            ranks=next(arrays).astype(np.int32),
            top_token_ids=next(arrays).astype(np.int32),
            top_logprobs=next(arrays),
        )


def logprobs_of(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> LogprobTensors:
    """Log-probabilities of one token in each row.

    Args:
        logits: [L, V] float32, as the model gave them.
        token_ids: [L] int64.
        num_top: K, how many of the most likely tokens to list; more than V gives V.

    Returns:
        L rows; a token's rank is 1 + the number of tokens with a greater logit.
    """
    num_rows, vocab_size = logits.shape
    rows_at_once = max(1, _MAX_ELEMENTS // vocab_size)
    num_top = min(num_top, vocab_size)
    parts = [
        _logprobs_of(logits[start : start + rows_at_once], token_ids[start : start + rows_at_once], num_top)
        for start in range(0, max(num_rows, 1), rows_at_once)
    ]
    return LogprobTensors(token_ids, *(torch.cat(column) for column in zip(*parts, strict=True)))


def _logprobs_of(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprobs, ranks, top_token_ids, top_logprobs)"""
    logprobs = logits.log_softmax(-1)
    ranks = 1 + (logits > logits.gather(-1, token_ids[:, None])).sum(-1)
    top_ids = logits.topk(num_top, dim=-1).indices
    return logprobs.gather(-1, token_ids[:, None]).squeeze(-1), ranks, top_ids, logprobs.gather(-1, top_ids)
