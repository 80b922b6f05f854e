"""Graphs equal eager steps on the families that Jitney verifies, through the very code that a GPU runs."""

import pytest
from tests.models.tiny import tiny_model

from jitney.models.transformers_model import TransformersModel
from jitney.sampling_params import SamplingParams

from .fake_graphs import FakeGraphs
from .plain_model import DenseAttention

FAMILIES = ["llama", "mistral", "qwen3", "gemma3", "gpt2", "gpt_neox", "olmo2", "smollm3", "phi3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_and_eager_steps_give_the_same_tokens(make_driver, family: str) -> None:
    outputs = []
    for library in (FakeGraphs(failing=[1]), None):
        driver = make_driver(TransformersModel(tiny_model(family), attention=DenseAttention()), 4, max_num_seqs=6)
        if library is not None:
            driver.runner.capture_decode_graphs(library, max_num_rows=5)
        for slot in range(5):
            params = SamplingParams(temperature=0) if slot % 2 else SamplingParams()
            driver.admit(slot, [3, 4, 5 + slot], params, seed=slot)
        driver.step(*((slot, 3) for slot in range(5)))
        for num_rows in (5, 3, 1, 4, 2, 5):
            driver.step(*((slot, 1) for slot in range(num_rows)))
        outputs.append(driver.outputs)
        assert library is None or (len(library.graphs) == 3 and library.num_replays == 4)
    assert outputs[0] == outputs[1]
