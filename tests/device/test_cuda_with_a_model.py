"""The whole path of a GPU but the GPU: engine, CUDA device, model runner, graphs; on fake streams with a real model."""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.config import EngineConfig
from jitney.device.cpu import CpuDevice
from jitney.device.cuda import CudaDevice
from jitney.engine.limits import make_requests, resolve_limits
from jitney.engine.loop import Engine
from jitney.runner.model_runner import ModelRunner
from jitney.sampling_params import SamplingParams
from jitney.types import Request
from tests.runner.fake_graphs import FakeGraphs
from tests.runner.plain_model import MAX_POSITION, VOCAB_SIZE, PlainModel

from .cuda_toys import fake_streams
from .fake_streams import FakeStreams

SETTINGS = {"block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 8}
PARAMS = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 5, "logprobs": 2},
    {"temperature": 0, "repetition_penalty": 1.4},
    {"temperature": 0.8, "seed": 7, "top_p": 0.7, "prompt_logprobs": 1},
]


def engine_around(library: FakeStreams | None, graphs: FakeGraphs | None, **settings: Any) -> Engine:
    config = EngineConfig(**SETTINGS | settings)
    limits = resolve_limits(
        config, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_POSITION, num_kv_blocks=20, eos_token_ids=(2,)
    )
    runner = ModelRunner(PlainModel(), 20, config.block_size, config.num_slots, limits.max_model_len)
    if graphs is not None:
        runner.capture_decode_graphs(graphs, config.max_num_seqs)
    device = CpuDevice(runner) if library is None else CudaDevice(runner, library, config.depth)
    return Engine(config, limits, device)


def outcomes(engine: Engine) -> list[tuple[object, ...]]:
    requests: list[Request] = []
    for index in range(8):
        params = SamplingParams(max_tokens=4 + 3 * index % 11, **PARAMS[index % len(PARAMS)])
        prompt = np.random.default_rng(index).integers(3, VOCAB_SIZE, 3 + index).tolist()
        requests += make_requests(str(index), prompt, params, engine.limits, engine_seed=0)
    engine.add(*requests)
    engine.run_until_idle()
    engine.close()
    return [
        (
            r.error,
            r.finish_reason,
            r.output_token_ids,
            [(t.token_id, t.rank, list(t.top_token_ids)) for t in r.logprobs],
        )
        for r in requests
    ]


@pytest.fixture(scope="module")
def expected() -> list[tuple[object, ...]]:
    return outcomes(engine_around(None, None, async_scheduling=False))


@given(st.sampled_from(["late", "early", "random"]), st.integers(1, 3), st.integers(0, 2**32), st.booleans())
@settings(max_examples=12, deadline=None)
def test_the_gpus_path_gives_the_cpus_tokens_and_logprobs(
    expected, mode: str, depth: int, seed: int, has_graphs: bool
) -> None:
    library, graphs = fake_streams(seed, mode), FakeGraphs() if has_graphs else None
    assert outcomes(engine_around(library, graphs, max_steps_in_flight=depth)) == expected
    assert library.races == []
    assert graphs is None or graphs.num_replays > 0


def test_without_its_waits_the_path_goes_wrong(expected) -> None:
    library = FakeStreams(random.Random(3).randrange, "random", without_waits_of="compute")
    with suppress(Exception):  # garbage for a slot number is an error in its own right
        assert outcomes(engine_around(library, None)) != expected
    assert library.races
