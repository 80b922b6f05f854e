"""What each slot needs for sampling, resident on the device and indexed by slot. Set up when a request takes a slot.

Common parameters are tensors over the slots, gathered by index in every step. Rare ones (token rules, penalties) are
kept only for the slots that use them. The host holds a word of flags for each slot, so that a step skips what none of
its rows needs without asking the device.
"""

import math
from enum import IntFlag

import numpy as np
import torch
from numpy.typing import NDArray

from jitney.device.transfer import to_device
from jitney.runner.logit_rules import LogitRules
from jitney.runner.penalties import TokenHistory, apply_penalties
from jitney.runner.random_stream import stream_start
from jitney.runner.sampling_ops import choose_sampling_ops
from jitney.sampling_params import SamplingParams
from jitney.types import Int32, SlotAdmission

_MIN_TEMPERATURE = 1e-30
"""Smaller ones would be 0 in float32; at this one the most likely token has it all anyway."""


class Feature(IntFlag):
    """What a row needs beyond an argmax."""

    RANDOM = 1
    MIN_P = 2
    TOP_K_TOP_P = 4
    RULES = 8
    PENALTIES = 16
    LOGPROBS = 32


class SamplingState:
    """Sampling state of all slots. `features`, `top_k_on_host` and `num_logprobs` are numpy, [num_slots].

    `ops`: the passes over the logits, as the device takes them.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.ops = choose_sampling_ops(device)
        self.features = np.zeros(num_slots, np.int32)
        self.top_k_on_host = np.zeros(num_slots, np.int32)
        self.num_logprobs = np.zeros(num_slots, np.int32)
        self.temperature = torch.ones(num_slots, dtype=torch.float32, device=device)
        self.log_min_p = torch.full((num_slots,), -torch.inf, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """0: off."""
        self.top_p = torch.full((num_slots,), torch.inf, dtype=torch.float64, device=device)
        """inf: off (no rounding of a sum can reach it)."""
        self.stream_starts = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._rules: dict[int, LogitRules] = {}
        self._histories: dict[int, tuple[TokenHistory, SamplingParams]] = {}
        self._prompts: dict[int, Int32] = {}

    def admit(self, *admissions: SlotAdmission) -> None:
        """Forget each slot's last request and set up the next one; what the device must know goes there in one copy."""
        for admission in admissions:
            self.features[admission.slot] = 0  # if this raises, later steps must not look for state that is gone
        features, rows = [], []
        for admission in admissions:
            params = admission.params
            features.append(self._admit_rare(admission))
            if not params.is_greedy:
                features[-1] |= self._random_features(params)
                rows.append(self._random_row(admission))
        if rows:
            self._store(rows)
        for admission, word in zip(admissions, features, strict=True):
            self.features[admission.slot] = word

    def _admit_rare(self, admission: SlotAdmission) -> Feature:
        slot, params, features = admission.slot, admission.params, Feature(0)
        for kept in (self._rules, self._histories, self._prompts):
            kept.pop(slot, None)
        rules = LogitRules.of(admission, self.vocab_size, self.device)
        if rules is not None:
            self._rules[slot] = rules
            features |= Feature.RULES
        if params.uses_penalties:
            history = TokenHistory(admission.prompt_token_ids, admission.output_token_ids, self.vocab_size, self.device)
            self._histories[slot] = (history, params)
            features |= Feature.PENALTIES
        if params.prompt_logprobs is not None:
            self._prompts[slot] = admission.prompt_token_ids
        if params.logprobs is not None:
            features |= Feature.LOGPROBS
            self.num_logprobs[slot] = params.logprobs
        return features

    def _random_features(self, params: SamplingParams) -> Feature:
        features = Feature.RANDOM
        if params.min_p > 0.0:
            features |= Feature.MIN_P
        if self._top_k(params) or params.top_p < 1.0:
            features |= Feature.TOP_K_TOP_P
        return features

    def _top_k(self, params: SamplingParams) -> int:
        return params.top_k if 0 < params.top_k < self.vocab_size else 0

    def _random_row(self, admission: SlotAdmission) -> NDArray[np.int64]:
        """[6] int64: slot, top_k, start of the random stream; then float64 temperature, log(min_p), top_p."""
        params = admission.params
        top_k = self.top_k_on_host[admission.slot] = self._top_k(params)
        integers = [admission.slot, top_k, stream_start(admission.seed)]
        floats = [
            max(params.temperature, _MIN_TEMPERATURE),
            math.log(params.min_p) if params.min_p > 0.0 else -math.inf,
            params.top_p if params.top_p < 1.0 else math.inf,
        ]
        return np.concatenate((np.array(integers, np.int64), np.array(floats, np.float64).view(np.int64)))

    def _store(self, rows: list[NDArray[np.int64]]) -> None:
        table = to_device(np.stack(rows, axis=1), self.device)
        slots, top_k, starts = table[:3]
        temperature, log_min_p, top_p = table[3:].view(torch.float64)
        self.top_k[slots], self.stream_starts[slots] = top_k, starts
        self.temperature[slots], self.log_min_p[slots] = temperature.float(), log_min_p.float()
        self.top_p[slots] = top_p

    def adjust(self, slot: int, position: int, logits: torch.Tensor) -> None:
        """Apply the slot's token rules, then its penalties, to its logits ([V]) in place."""
        if slot in self._rules:
            self._rules[slot].apply(logits, position)
        if slot in self._histories:
            apply_penalties(logits, *self._histories[slot])

    def append_token(self, slot: int, token_id: torch.Tensor) -> None:
        """Tell the slot's penalties which token ([1] int64) was sampled."""
        self._histories[slot][0].append(token_id)

    def prompt(self, slot: int) -> Int32:
        """The prompt of a slot that asked for prompt logprobs."""
        return self._prompts[slot]
