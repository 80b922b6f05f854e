"""What each slot needs for sampling, resident on the device and indexed by slot. Set up when a request takes a slot.

Common parameters are tensors over the slots, gathered by index in every step. Rare ones (token rules, penalties) are
kept only for the slots that use them. The host holds a word of flags for each slot, so that a step skips what none of
its rows needs without asking the device.
"""

import math
from enum import IntFlag

import numpy as np
import torch

from jitney.runner.logit_rules import LogitRules
from jitney.runner.penalties import TokenHistory, apply_penalties
from jitney.runner.random_numbers import stream_start
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
    """Sampling state of all slots. `features`, `top_k_on_host` and `num_logprobs` are numpy, [num_slots]."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
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

    def admit(self, admission: SlotAdmission) -> None:
        """Forget the slot's last request and set up the next one."""
        slot, params = admission.slot, admission.params
        self.features[slot] = 0  # if this raises, the next step must not look for state that is gone
        features = self._admit_rare(admission)
        if params.logprobs is not None:
            features |= Feature.LOGPROBS
            self.num_logprobs[slot] = params.logprobs
        if not params.is_greedy:
            features |= self._admit_random(slot, params, admission.seed)
        self.features[slot] = features

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
        return features

    def _admit_random(self, slot: int, params: SamplingParams, seed: int) -> Feature:
        features = Feature.RANDOM
        top_k = params.top_k if 0 < params.top_k < self.vocab_size else 0
        top_p = params.top_p if params.top_p < 1.0 else math.inf
        if params.min_p > 0.0:
            features |= Feature.MIN_P
        if top_k or top_p < math.inf:
            features |= Feature.TOP_K_TOP_P
        self.temperature[slot] = max(params.temperature, _MIN_TEMPERATURE)
        self.log_min_p[slot] = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        self.top_k[slot] = self.top_k_on_host[slot] = top_k
        self.top_p[slot] = top_p
        self.stream_starts[slot] = stream_start(seed)
        return features

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
