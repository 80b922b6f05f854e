"""The CPU as a device: steps run in order on one thread of their own. Knows nothing of what a step does.

The numeric kernels release Python's lock while they compute, so the host plans the next step in the meantime.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter, sleep

import numpy as np

from jitney.device.base import StepRunner
from jitney.errors import EngineDeadError
from jitney.types import Int32, StepInputs, StepOutput


class CpuTicket:
    """A step on the device thread."""

    def __init__(self, runner: StepRunner, inputs: StepInputs, executor: ThreadPoolExecutor) -> None:
        self._start = self._end = 0.0
        self._future: Future[StepOutput] = executor.submit(self._run, runner, inputs)

    def _run(self, runner: StepRunner, inputs: StepInputs) -> StepOutput:
        self._start = perf_counter()
        try:
            return runner.run(inputs)
        finally:
            self._end = perf_counter()

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> StepOutput:
        return self._future.result()

    def span(self) -> tuple[float, float]:
        return self._start, self._end


class CpuDevice:
    """Runs `runner`'s steps on a thread. Implements Device (device/base.py)."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner: StepRunner | None = runner
        self._process = os.getpid()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jitney-device")

    def now(self) -> float:
        return perf_counter()

    def wait_until(self, time: float) -> None:
        sleep(max(0.0, time - perf_counter()))

    def host_buffer(self, size: int) -> Int32:
        return np.empty(size, np.int32)

    def submit(self, inputs: StepInputs) -> CpuTicket:
        """Queue a step. Raises EngineDeadError after `close`."""
        if self._runner is None:
            raise EngineDeadError("the device is closed; make a new engine to run more steps")
        if os.getpid() != self._process:  # threads do not survive a fork: the step would never run
            raise EngineDeadError(
                "this process was forked from the one with the engine; make the engine after the fork"
            )
        return CpuTicket(self._runner, inputs, self._executor)

    def close(self) -> None:
        self._runner = None
        self._executor.shutdown(wait=True)
