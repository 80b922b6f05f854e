"""What each slot needs for sampling, in numpy, for a runner whose logits lie in host memory.

What most requests use is one record a slot that the native code reads (csrc/sampling.h). Rules, penalties and logprobs
are rare: Python keeps them for the slots that have them and changes those rows of logits before tokens are drawn. The
meanings are those of sampler.py, logit_rules.py and penalties.py.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitney.kernels.native.library import SLOT_SAMPLING
from jitney.runner.random_stream import stream_start
from jitney.sampling_params import SamplingParams
from jitney.types import Bool, Float32, Int32, Int64, SlotAdmission

_MIN_TEMPERATURE = 1e-30
"""Smaller ones would be 0 in float32; at this one the most likely token has it all anyway."""


class NativeSampling:
    """Sampling state of all slots."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.choices: NDArray[np.void] = np.zeros(num_slots, SLOT_SAMPLING)
        """[num_slots]"""
        self.is_rare: Bool = np.zeros(num_slots, np.bool_)
        """[num_slots] slots that `rare` knows."""
        self.rare: dict[int, RareSampling] = {}

    def admit(self, admissions: Iterable[SlotAdmission]) -> None:
        """Forget each slot's last request and set up the next one."""
        for admission in admissions:
            slot, params = admission.slot, admission.params
            self.rare.pop(slot, None)
            self.choices[slot] = _choice(params, admission.seed)
            rare = RareSampling.of(admission, self.vocab_size)
            self.is_rare[slot] = rare is not None
            if rare is not None:
                self.rare[slot] = rare


def _choice(params: SamplingParams, seed: int) -> tuple[float, int, float, float, int, int]:
    """One SLOT_SAMPLING record."""
    temperature = max(params.temperature, _MIN_TEMPERATURE)
    log_min_p = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    is_random = not params.is_greedy
    return params.top_p, stream_start(seed) % 2**64, temperature, log_min_p, max(params.top_k, 0), is_random


@dataclass(slots=True)
class RareSampling:
    """Token rules, penalties and logprobs of one slot."""

    params: SamplingParams
    rules: "_Rules | None"
    history: "_History | None"
    prompt: Int32

    @classmethod
    def of(cls, admission: SlotAdmission, vocab_size: int) -> "RareSampling | None":
        """None if the request has nothing of the kind (the usual case)."""
        params = admission.params
        rules = _Rules.of(admission, vocab_size)
        history = _History(admission, vocab_size) if params.uses_penalties else None
        wants_logprobs = params.logprobs is not None or params.prompt_logprobs is not None
        if rules is None and history is None and not wants_logprobs:
            return None
        return cls(params, rules, history, admission.prompt_token_ids)

    @property
    def changes_logits(self) -> bool:
        return self.rules is not None or self.history is not None

    def adjust(self, logits: Float32, position: int) -> None:
        """Apply the rules, then the penalties, to one row ([V]) in place."""
        if self.rules is not None:
            self.rules.apply(logits, position)
        if self.history is not None:
            self.history.penalise(logits, self.params)

    def append(self, token_id: int) -> None:
        """A token has been sampled."""
        if self.history is not None:
            self.history.append(token_id)


@dataclass(frozen=True, slots=True)
class _Rules:
    """Which tokens may be sampled at all, and biases; ids as [n] int64."""

    allowed: Int64 | None
    bad: Int64
    bias_ids: Int64
    bias: Float32
    stop: Int64
    min_position: int
    """Stop tokens are forbidden at positions below this."""

    @classmethod
    def of(cls, admission: SlotAdmission, vocab_size: int) -> "_Rules | None":
        params = admission.params
        stop = admission.stop_token_ids if params.min_tokens else ()
        if params.allowed_token_ids is None and not (len(params.bad_token_ids) or params.logit_bias or stop):
            return None

        def index(ids: Iterable[int]) -> Int64:
            return np.array([i for i in ids if i < vocab_size], np.int64)

        return cls(
            allowed=None if params.allowed_token_ids is None else index(params.allowed_token_ids),
            bad=index(params.bad_token_ids),
            bias_ids=index(params.logit_bias),
            bias=np.array([bias for token, bias in params.logit_bias.items() if token < vocab_size], np.float32),
            stop=index(stop),
            min_position=len(admission.prompt_token_ids) + params.min_tokens,
        )

    def apply(self, logits: Float32, position: int) -> None:
        if self.allowed is not None:
            kept = logits[self.allowed]
            logits.fill(-np.inf)
            logits[self.allowed] = kept
        logits[self.bias_ids] += self.bias
        logits[self.bad] = -np.inf
        if position < self.min_position:
            logits[self.stop] = -np.inf


class _History:
    """Which tokens a slot's sequence has, and how often its output has them."""

    def __init__(self, admission: SlotAdmission, vocab_size: int) -> None:
        prompt = admission.prompt_token_ids
        self._counts = np.bincount(admission.output_token_ids, minlength=vocab_size).astype(np.int32)
        self._is_seen = self._counts > 0
        self._is_seen[prompt[prompt < vocab_size]] = True

    def append(self, token_id: int) -> None:
        self._counts[token_id] += 1
        self._is_seen[token_id] = True

    def penalise(self, logits: Float32, params: SamplingParams) -> None:
        """Repetition first, over prompt and output; then frequency and presence, over the output (penalties.py)."""
        seen = np.flatnonzero(self._is_seen)
        values, counts = logits[seen], self._counts[seen]
        repetition = np.float32(params.repetition_penalty)
        values = np.where(values > 0, values / repetition, values * repetition)
        values -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        values -= np.float32(params.presence_penalty) * (counts > 0)
        logits[seen] = values
