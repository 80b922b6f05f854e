"""Whole tiny models with the fused operations in place of the reference."""

from pathlib import Path

import numpy as np
import pytest
import torch

from jitney.kernels.attention import TorchAttention
from jitney.kernels.triton.ops import TritonOps
from jitney.models.decoder.model import FusedDecoder
from jitney.runner.model_runner import ModelRunner
from jitney.sampling_params import SamplingParams
from jitney.types import LogprobRows, SlotAdmission, StepInputs
from tests.models.decoder.families import fused, model_of

PROMPT = np.array([5, 17, 3, 44, 9, 9, 30, 2, 11], np.int32)


def prompt_logprobs(model: FusedDecoder) -> LogprobRows:
    """Of a prompt in scattered blocks, all in one step."""
    runner = ModelRunner(model, 8, 4, 1, 16)
    updates = np.array([[0, 0, 5], [0, 1, 2], [0, 2, 7]], np.int32)
    data = np.concatenate(([0], [0], [len(PROMPT)], [0], PROMPT, updates.ravel())).astype(np.int32)
    params = SamplingParams(temperature=0, prompt_logprobs=3)
    admission = SlotAdmission(0, params, 0, (), PROMPT, np.empty(0, np.int32))
    return runner.run(StepInputs(0, 1, 0, 1, len(PROMPT), 3, data, (admission,), ((0, 3),))).prompt_logprobs[0]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_a_model_gives_the_same_logprobs_with_the_fused_operations(family: str, tmp_path: Path) -> None:
    reference = fused(model_of(family), tmp_path)
    own = FusedDecoder(family, reference._config, reference._weights, TorchAttention(), TritonOps())
    got, expected = prompt_logprobs(own), prompt_logprobs(reference)
    torch.testing.assert_close(torch.tensor(got.logprobs), torch.tensor(expected.logprobs), rtol=1e-4, atol=1e-4)
    assert got.top_token_ids.tolist() == expected.top_token_ids.tolist()
