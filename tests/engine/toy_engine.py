"""An engine on the simulated device with the toy runner, and what that runner should say."""

from typing import Any

import numpy as np

from jitney.config import EngineConfig
from jitney.device.simulated import VirtualClock, linear_cost
from jitney.engine.limits import EngineLimits, make_requests, resolve_limits
from jitney.engine.loop import Engine
from jitney.runner.toy import ToyRunner, toy_next_token
from jitney.sampling_params import SamplingParams
from jitney.types import Request, StepInputs, StepOutput, TokenUpdate

from .inspecting_device import InspectingDevice

VOCAB_SIZE = 97
EOS = 7


class FailingRunner(ToyRunner):
    """Raises in the steps named in `failing_steps`, with garbage written; NaN for the steps in `nan_steps`."""

    def __init__(
        self, vocab_size: int, num_kv_blocks: int, block_size: int, num_slots: int, num_host_kv_blocks: int = 0
    ) -> None:
        super().__init__(vocab_size, num_kv_blocks, block_size, num_slots, num_host_kv_blocks)
        self.failing_steps: set[int] = set()
        self.nan_steps: dict[int, int] = {}
        """step -> index among its sampled rows"""

    def run(self, inputs: StepInputs) -> StepOutput:
        if inputs.step_id in self.failing_steps:
            self.spoil(inputs)
            raise RuntimeError("the device caught fire")
        output = super().run(inputs)
        if inputs.step_id in self.nan_steps and len(output.is_valid):
            output.is_valid[self.nan_steps[inputs.step_id] % len(output.is_valid)] = False
        return output


class Recorder:
    """A listener that keeps everything it hears."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: list[TokenUpdate] = []

    def __call__(self, update: TokenUpdate) -> None:
        assert not self.ends, "an update after the end"
        self.tokens += update.token_ids
        if update.finish_reason is not None:
            self.ends.append(update)


class ToyEngine(Engine):
    """An engine whose device inspects every step, with device and runner at hand."""

    device: InspectingDevice
    runner: FailingRunner


def toy_engine(
    num_kv_blocks: int = 64,
    max_position: int = 512,
    host_cost_s: float = 0.0,
    num_host_kv_blocks: int = 0,
    **settings: Any,
) -> ToyEngine:
    defaults = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 4}
    config = EngineConfig(**(defaults | settings))
    limits = resolve_limits(
        config,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=max_position,
        num_kv_blocks=num_kv_blocks,
        eos_token_ids=(EOS,),
        num_host_kv_blocks=num_host_kv_blocks,
    )
    runner = FailingRunner(VOCAB_SIZE, num_kv_blocks, config.block_size, config.num_slots, num_host_kv_blocks)
    device = InspectingDevice(runner, linear_cost(0.01, 0.0001), VirtualClock(host_cost_s))
    engine = ToyEngine(config, limits, device)
    engine.runner = runner
    device.engine = engine
    return engine


def toy_request(
    limits: EngineLimits,
    request_id: str,
    prompt: list[int],
    *,
    streams: bool = True,
    priority: int = 0,
    salt: str = "",
    **params: Any,
) -> Request:
    sampling = SamplingParams(**({"max_tokens": 8, "seed": 0} | params))
    (request,) = make_requests(request_id, prompt, sampling, limits, engine_seed=0, priority=priority, cache_salt=salt)
    request.listener = Recorder()
    request.streams = streams
    return request


def expected_tokens(request: Request) -> list[int]:
    """What the toy model says, computed one request at a time without cache, scheduler or device."""
    context = request.prompt_token_ids.tolist()
    outputs: list[int] = []
    while len(outputs) < request.max_tokens:
        token = toy_next_token(np.array(context + outputs, dtype=np.int32), request.seed, VOCAB_SIZE)
        outputs.append(token)
        if token in request.stop_token_ids:
            break
    return outputs


def check_idle(engine: Engine) -> None:
    """Nothing is held, nothing waits, every block is in its place."""
    scheduler = engine.scheduler
    assert not engine.has_work and engine.num_unfinished == 0
    assert scheduler.num_running == 0 and scheduler.num_waiting == 0
    pool = scheduler.seating.pool
    pool.check()
    assert pool.num_free == pool.num_blocks
    swap_space = scheduler.seating.swap_space
    swap_space.check()
    assert swap_space.num_free == swap_space.num_blocks


def recorder(request: Request) -> Recorder:
    assert isinstance(request.listener, Recorder)
    return request.listener
