"""Overlap reproduces the published measurement: 300.6 s synchronous, 24 % of it host work, 99.4 % busy with overlap."""

import pytest

from jitney.config import EngineConfig
from jitney.device.simulated import SimulatedDevice, VirtualClock, linear_cost
from jitney.engine.limits import EngineLimits, make_requests
from jitney.engine.loop import Engine
from jitney.engine.records import device_idle_share
from jitney.runner.toy import NullRunner
from jitney.sampling_params import SamplingParams

HOST_S, DEVICE_S, NUM_TOKENS = 0.0088, 0.0279, 8192


@pytest.mark.parametrize(("is_async", "seconds", "idle"), [(False, 300.6, 0.24), (True, 228.6, 0.0)])
def test_an_8b_model_with_32_requests_takes_as_long_as_published(is_async: bool, seconds: float, idle: float) -> None:
    config = EngineConfig(max_num_seqs=32, async_scheduling=is_async)
    limits = EngineLimits(100, NUM_TOKENS + 8, 32 * 520)
    engine = Engine(config, limits, SimulatedDevice(NullRunner(), linear_cost(DEVICE_S), VirtualClock(HOST_S)))
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    for index in range(32):
        engine.add(*make_requests(str(index), [index] * 8, params, limits, engine_seed=0))
    engine.run_until_idle()
    assert engine.device.now() == pytest.approx(seconds, rel=0.005)
    measured = device_idle_share(engine.records.since())
    assert measured == pytest.approx(idle, abs=0.002)
    if is_async:
        assert 1 - measured >= 0.994
