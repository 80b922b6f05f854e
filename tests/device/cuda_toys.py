"""The real CUDA device on fake streams, with the toy runner on it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jitney.config import EngineConfig
from jitney.device.base import StepRunner
from jitney.device.cuda import CudaDevice
from jitney.engine.limits import resolve_limits
from jitney.engine.loop import Engine
from jitney.types import StepInputs, StepOutput
from tests.engine.toy_engine import EOS, VOCAB_SIZE, FailingRunner

from .fake_streams import FakeStreams


@dataclass(frozen=True)
class ToyOutput:
    output: StepOutput

    def tensors(self) -> list[torch.Tensor]:
        return [torch.from_numpy(self.output.token_ids), torch.from_numpy(self.output.is_valid)]

    def assemble(self, arrays: Sequence[NDArray[Any]]) -> StepOutput:
        return StepOutput(*arrays)


class AsyncToyRunner:
    """Any StepRunner as an AsyncStepRunner: it reads its inputs from the device's copy, and only there."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self.data: list[NDArray[np.int32]] = []

    def execute(self, data: torch.Tensor, inputs: StepInputs) -> ToyOutput:
        self.data.append(data.numpy().copy())
        return ToyOutput(self.runner.run(replace(inputs, data=data.numpy())))


class CudaToyEngine(Engine):
    device: CudaDevice
    runner: FailingRunner
    library: FakeStreams


def cuda_toy_engine(library: FakeStreams, num_kv_blocks: int, **settings: Any) -> CudaToyEngine:
    config = EngineConfig(**settings)
    limits = resolve_limits(
        config,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=512,
        num_kv_blocks=num_kv_blocks,
        eos_token_ids=(EOS,),
    )
    runner = FailingRunner(VOCAB_SIZE, num_kv_blocks, config.block_size, config.num_slots)
    engine = CudaToyEngine(config, limits, CudaDevice(AsyncToyRunner(runner), library, config.depth))
    engine.runner, engine.library = runner, library
    return engine


def fake_streams(seed: int, mode: str = "random", without_waits_of: str | None = None) -> FakeStreams:
    return FakeStreams(random.Random(seed).randrange, mode, without_waits_of)
