"""Swapped blocks on a GPU's path, on fake streams: host memory is read and written in order with the steps."""

import pytest

from jitney.config import EngineConfig
from jitney.device.cuda import CudaDevice
from jitney.engine.limits import make_requests, resolve_limits
from jitney.engine.loop import Engine
from jitney.runner.model_runner import ModelRunner
from jitney.sampling_params import SamplingParams
from tests.engine.toy_engine import check_idle
from tests.runner.fake_graphs import FakeGraphs
from tests.runner.plain_model import MAX_POSITION, VOCAB_SIZE, PlainModel

from .cuda_toys import fake_streams


def outputs(num_kv_blocks: int, num_host_kv_blocks: int, depth: int, mode: str) -> tuple[list[list[int]], Engine]:
    config = EngineConfig(block_size=4, max_num_seqs=3, max_num_batched_tokens=8, max_steps_in_flight=depth)
    limits = resolve_limits(
        config,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_POSITION,
        num_kv_blocks=num_kv_blocks,
        num_host_kv_blocks=num_host_kv_blocks,
    )
    runner = ModelRunner(
        PlainModel(), num_kv_blocks, config.block_size, config.num_slots, limits.max_model_len, num_host_kv_blocks
    )
    runner.capture_decode_graphs(FakeGraphs(), config.max_num_seqs)
    library = fake_streams(7, mode)
    engine = Engine(config, limits, CudaDevice(runner, library, config.depth))
    requests = [
        make_requests(
            str(index), [3 + index] * (3 + index), SamplingParams(max_tokens=16, seed=index), limits, engine_seed=0
        )[0]
        for index in range(5)
    ]
    engine.add(*requests)
    engine.run_until_idle()
    check_idle(engine)
    assert library.races == [] and all(request.error is None for request in requests)
    return [request.output_token_ids for request in requests], engine


@pytest.mark.parametrize("mode", ["late", "early", "random"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_swapping_changes_no_token(depth: int, mode: str) -> None:
    expected, _ = outputs(num_kv_blocks=40, num_host_kv_blocks=0, depth=1, mode="early")
    tokens, engine = outputs(num_kv_blocks=9, num_host_kv_blocks=30, depth=depth, mode=mode)
    assert tokens == expected
    assert engine.records.since()["num_swapped_in"].sum() > 0
