"""Preempted requests whose KV waits in host memory, with a real (tiny, random) model from front door to cache."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from jitney.errors import ConfigError
from jitney.llm import LLM
from jitney.outputs import RequestOutput
from jitney.sampling_params import SamplingParams

from .engine.toy_engine import check_idle

PROMPTS = [{"prompt_token_ids": [5 + index, *range(9, 9 + 3 * index)]} for index in range(6)]
PARAMS = [SamplingParams(max_tokens=30, seed=index, temperature=index % 2, ignore_eos=True) for index in range(6)]
TIGHT = {"num_kv_blocks": 16, "max_model_len": 64, "block_size": 4, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


def generate(llm: LLM) -> list[list[int]]:
    outputs: list[RequestOutput] = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert all(output.error is None for output in outputs)
    check_idle(llm.engine)
    return [output.outputs[0].token_ids for output in outputs]


def num_computed(llm: LLM) -> int:
    records = llm.engine.records.since()
    return int(records["num_prompt_tokens"].sum() + records["num_decode_rows"].sum())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_tiny_pool_gives_the_same_tokens_with_and_without_swap_space(model: LlamaForCausalLM, depth: int) -> None:
    settings = {"async_scheduling": depth > 1, "max_steps_in_flight": max(depth, 2)}
    needed = sum(len(prompt["prompt_token_ids"]) + 30 - 1 for prompt in PROMPTS)
    with LLM(model, **settings) as roomy:
        expected = generate(roomy)
    with LLM(model, **settings, **TIGHT) as recomputing:
        assert generate(recomputing) == expected
        assert recomputing.engine.scheduler.num_preemptions > 0
        assert num_computed(recomputing) > needed
    with LLM(model, **settings, **TIGHT, swap_space=0.001) as swapping:
        assert generate(swapping) == expected
        assert swapping.engine.scheduler.num_preemptions > 0
        assert swapping.engine.records.since()["num_swapped_in"].sum() > 0
        assert num_computed(swapping) == needed


def test_more_swap_space_than_there_is_memory_is_refused_at_the_start(model: LlamaForCausalLM) -> None:
    with pytest.raises(ConfigError, match=r"swap_space=16000 GiB .* lower swap_space to"):
        LLM(model, swap_space=16000)
