"""Logprobs of prompts through the whole engine: how many a step may compute changes nothing but the memory it takes."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from jitney import config as settings
from jitney.config import EngineConfig
from jitney.device.cpu import CpuDevice
from jitney.engine.limits import make_requests, resolve_limits
from jitney.engine.loop import Engine
from jitney.runner.model_runner import ModelRunner
from jitney.sampling_params import SamplingParams
from jitney.types import Request, StepInputs, StepOutput
from tests.runner.plain_model import MAX_POSITION, VOCAB_SIZE, PlainModel


@dataclass
class CountingRunner:
    runner: ModelRunner
    num_positions: list[int] = field(default_factory=list)

    def run(self, inputs: StepInputs) -> StepOutput:
        output = self.runner.run(inputs)
        self.num_positions.append(sum(len(rows.token_ids) for rows in output.prompt_logprobs.values()))
        return output


def outcomes(**changes: object) -> tuple[list[Request], list[int]]:
    config = EngineConfig(**{"block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 64} | changes)
    limits = resolve_limits(config, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_POSITION, num_kv_blocks=60)
    runner = CountingRunner(ModelRunner(PlainModel(), 60, 4, config.num_slots, limits.max_model_len))
    engine = Engine(config, limits, CpuDevice(runner))
    requests: list[Request] = []
    for index, length in enumerate([17, 5, 1, 30, 2, 11]):
        params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=None if index == 1 else 2)
        prompt = np.random.default_rng(index).integers(0, VOCAB_SIZE, length).tolist()
        requests += make_requests(str(index), prompt, params, limits, engine_seed=0)
    engine.add(*requests)
    engine.run_until_idle()
    engine.close()
    return requests, runner.num_positions


def test_a_step_computes_no_more_of_them_than_it_may_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, unbounded = outcomes()
    for most in (1, 7):
        monkeypatch.setattr(settings, "MAX_PROMPT_LOGPROB_TOKENS", most)
        got, bounded = outcomes()
        assert max(bounded) == most < max(unbounded)
        assert sum(bounded) == sum(unbounded) == 16 + 29 + 1 + 10
        for one, other in zip(got, expected, strict=True):
            assert one.output_token_ids == other.output_token_ids
            assert len(one.prompt_logprobs) == len(other.prompt_logprobs)
            for a, b in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True):
                assert (a.token_id, a.rank, list(a.top_token_ids)) == (b.token_id, b.rank, list(b.top_token_ids))
                assert a.logprob == pytest.approx(b.logprob, abs=1e-5)


def test_prompts_without_logprobs_fill_the_step_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "MAX_PROMPT_LOGPROB_TOKENS", 4)
    requests, num_positions = outcomes()
    assert requests[1].metrics.first_token_time is not None and requests[0].metrics.first_token_time is not None
    assert requests[1].metrics.first_token_time < requests[0].metrics.first_token_time
    assert num_positions[0] == 4


def test_prompts_that_may_not_be_split_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "MAX_PROMPT_LOGPROB_TOKENS", 4)
    _, num_positions = outcomes(enable_chunked_prefill=False, max_num_batched_tokens=80)
    assert max(num_positions) >= 29
