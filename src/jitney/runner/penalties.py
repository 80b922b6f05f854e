"""Repetition, presence and frequency penalties over the whole history of one slot. Knows one row of logits at a time.

The counts live on the device, because the host does not know a token yet when the next step is submitted.
"""

import numpy as np
import torch

from jitney.device.transfer import to_device
from jitney.sampling_params import SamplingParams
from jitney.types import Int32


class TokenHistory:
    """The tokens of a slot's sequence, on the device. Appending and reading need no word back from the device."""

    def __init__(self, prompt: Int32, output: Int32, vocab_size: int, device: torch.device) -> None:
        """History of a sequence of which `output` ([n] int32) is generated already."""
        distinct = np.unique(prompt)
        token_ids = np.concatenate((distinct[distinct < vocab_size], output)).astype(np.int64)
        self._token_ids = to_device(token_ids, device)
        self._length = len(token_ids)
        counts = np.bincount(output, minlength=vocab_size).astype(np.int32)
        self.output_counts = to_device(counts, device)
        """[V] int32: how often each token stands in the output."""

    @property
    def token_ids(self) -> torch.Tensor:
        """[n] int64: every token of prompt and output at least once."""
        return self._token_ids[: self._length]

    def append(self, token_id: torch.Tensor) -> None:
        """Add one more output token ([1] int64, on the device)."""
        if self._length == len(self._token_ids):
            room = torch.empty(self._length + 64, dtype=torch.int64, device=token_id.device)
            self._token_ids = torch.cat((self._token_ids, room))
        self._token_ids[self._length : self._length + 1] = token_id
        self._length += 1
        self.output_counts.index_add_(0, token_id, torch.ones_like(token_id, dtype=torch.int32))


def apply_penalties(logits: torch.Tensor, history: TokenHistory, params: SamplingParams) -> None:
    """Penalise one row of logits ([V] float32) in place.

    Repetition (Keskar et al., "CTRL", 2019) comes first and covers prompt and output: positive logits are divided by
    it, the others multiplied. Frequency (times the count) and presence (once) cover the output only.
    """
    token_ids = history.token_ids
    values, counts = logits[token_ids], history.output_counts[token_ids]
    if params.repetition_penalty != 1.0:
        values = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if params.frequency_penalty:
        values -= params.frequency_penalty * counts
    if params.presence_penalty:
        values -= params.presence_penalty * (counts > 0)
    logits[token_ids] = values  # a token named twice gets the same value twice
