"""Whole models on Triton's attention give the tokens they give on the reference."""

import pytest

from jitney.kernels.triton.attention import TritonAttention
from jitney.models.transformers_model import TransformersModel
from tests.models.driver import generate
from tests.models.tiny import tiny_model

PROMPTS = [[5, 9, 3, 40], list(range(3, 22)), [7]]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_tokens_equal_the_references_through_windows_softcap_and_sinks(family: str) -> None:
    model = tiny_model(family)
    expected = generate(TransformersModel(model), PROMPTS, 5, 4)
    assert generate(TransformersModel(model, TritonAttention()), PROMPTS, 5, 4) == expected
