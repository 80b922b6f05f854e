"""The sampler with Triton's kernels, in the interpreter, against the sampler of the CPU."""

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch

from jitney.runner.sampler import SampledTokens, SampleRows, sample
from jitney.runner.sampling_ops import (
    HostSamplingOps,
    SamplingOps,
    TritonSamplingOps,
    UnseenSamplingOps,
    choose_sampling_ops,
)
from jitney.runner.sampling_state import SamplingState
from jitney.sampling_params import SamplingParams
from jitney.types import SlotAdmission

VOCAB_SIZE = 301
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 2},
    {},
    {"top_p": 0.8},
    {"top_k": 5, "temperature": 0.7},
    {"top_k": 9, "top_p": 0.6, "min_p": 0.01},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"top_p": 0.9, "allowed_token_ids": [4, 5, 6, 90]},
]


def sampled(ops: SamplingOps, logits: torch.Tensor, params: list[dict[str, Any]]) -> SampledTokens:
    state = SamplingState(len(params), VOCAB_SIZE, torch.device("cpu"))
    state.ops = ops
    prompt, nothing = np.array([3, 4], np.int32), np.empty(0, np.int32)
    for slot, settings in enumerate(params):
        state.admit(SlotAdmission(slot, SamplingParams(**settings), slot, (), prompt, nothing))
    slots, positions = np.arange(len(params), dtype=np.int32), np.full(len(params), 2, np.int32)
    rows = SampleRows(torch.from_numpy(slots).long(), torch.from_numpy(positions).long(), slots, positions)
    return sample(logits.clone(), rows, state)


@pytest.mark.parametrize("params", [PARAMS, PARAMS[:2], PARAMS[2:6]], ids=["all", "greedy", "random"])
def test_all_ways_give_the_same_tokens(params: list[dict[str, Any]]) -> None:
    logits = torch.randn(len(params), VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 3
    logits[0, 7] = torch.nan
    expected = sampled(HostSamplingOps(), logits, params)
    assert expected.is_valid.tolist() == [False] + [True] * (len(params) - 1)
    for ops in (TritonSamplingOps(), UnseenSamplingOps()):
        got = sampled(ops, logits, params)
        assert torch.equal(got.is_valid, expected.is_valid)
        assert torch.equal(got.token_ids[1:], expected.token_ids[1:])
        assert (got.logprobs is None) == (expected.logprobs is None)
        if got.logprobs is not None and expected.logprobs is not None:
            for one, other in zip(astuple(got.logprobs), astuple(expected.logprobs), strict=True):
                assert torch.equal(one, other)


def test_a_gpu_gets_the_kernels() -> None:
    assert isinstance(choose_sampling_ops(torch.device("cuda")), TritonSamplingOps)
