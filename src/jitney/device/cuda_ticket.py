"""One step on its way through the three streams, and the claim on its result. Knows events, and no other step."""

from collections.abc import Callable
from time import perf_counter
from traceback import clear_frames

import numpy as np
import torch

from jitney.device.base import AsyncStepRunner, PendingOutput
from jitney.device.device_clock import DeviceClock
from jitney.device.streams import StreamLibrary
from jitney.errors import EngineDeadError
from jitney.types import StepInputs, StepOutput

_ALIGNMENT = 16
"""Bytes; each tensor's copy starts at a multiple."""


class CudaTicket:
    """A submitted step (see Ticket in device/base.py).

    `compute` and `copy_to_host` are its work on the compute and the D2H stream. What they raise is kept: it is the
    step's own failure if the device still answers when the result is asked for, and the engine's end if it does not.
    """

    def __init__(
        self,
        library: StreamLibrary,
        runner: AsyncStepRunner,
        inputs: StepInputs,
        clock: DeviceClock,
        on_collected: Callable[["CudaTicket"], None],
    ) -> None:
        self.inputs = inputs
        self.started = library.event(timed=True)
        self.computed = library.event(timed=True)
        self.copied = library.event()
        self._library = library
        self._runner: AsyncStepRunner | None = runner
        self._clock = clock
        self._on_collected = on_collected
        self._submitted = perf_counter()
        self._data: torch.Tensor | None = None
        self._pending: PendingOutput | None = None
        self._host: list[torch.Tensor] = []
        self._error: Exception | None = None
        self._outcome: StepOutput | Exception | None = None
        self._span = (0.0, 0.0)

    def compute(self, data: torch.Tensor) -> None:
        """Launch the step on the current stream."""
        assert self._runner is not None
        self._data = data
        try:
            self._pending = self._runner.execute(data, self.inputs)
        except Exception as error:
            clear_frames(error.__traceback__)  # they hold the step's activations, and the error may live long
            self._error = error
        self._runner = None

    def copy_to_host(self) -> None:
        """Copy the results into pinned memory on the current stream; they are not read before `copied`."""
        if self._pending is None:
            return
        try:
            tensors = [tensor.contiguous() for tensor in self._pending.tensors()]
            self._host = _areas(self._library, tensors)
            for target, source in zip(self._host, tensors, strict=True):
                target.copy_(source, non_blocking=True)
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        return self._outcome is not None or self.copied.done()

    def result(self) -> StepOutput:
        """Wait for one event. Raises what the step raised, or EngineDeadError if the GPU itself has failed."""
        if self._outcome is None:
            self._outcome = self._collect()
            self._on_collected(self)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def span(self) -> tuple[float, float]:
        return self._span

    def _collect(self) -> StepOutput | Exception:
        try:
            must_wait = not self.copied.done()
            self.copied.synchronize()
            seen = perf_counter()
            self._span = self._clock.span(self.started, self.computed, self._submitted, seen, must_wait)
        except Exception as failure:
            # such errors stay: from now on the device answers every call with this one
            dead = EngineDeadError(f"the GPU has failed: {failure}")
            dead.__cause__ = failure
            return dead
        pending, self._pending, self._data = self._pending, None, None
        if self._error is not None or pending is None:
            return self._error or EngineDeadError("the step was never computed")
        return pending.assemble([tensor.numpy() for tensor in self._host])


def _areas(library: StreamLibrary, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Room for a copy of each tensor, in one piece of pinned memory."""
    if not tensors:
        return []
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
    area = library.pinned(starts.pop())
    return [
        area[start : start + size].view(tensor.dtype).view(tensor.shape)
        for start, size, tensor in zip(starts, sizes, tensors, strict=True)
    ]
