"""The seam between the engine and whatever computes. Batch layout and sampling rules are not known here.

A device takes one step's inputs and returns at once with a Ticket; the step's result comes later. The last sampled
token of every slot stays on the device, so the host may submit step N + 1 before it has seen the tokens of step N.
Steps run in the order of submission, one after the other.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from jitney.types import Int32, StepInputs, StepOutput

if TYPE_CHECKING:
    import torch


class Ticket(Protocol):
    """The claim on one submitted step: an event on CUDA, a future on a CPU, settled by hand in tests."""

    def done(self) -> bool:
        """Whether `result` would return at once."""

    def result(self) -> StepOutput:
        """Wait for the step and return its output. Raises what the step raised."""

    def span(self) -> tuple[float, float]:
        """(start, end) of the step on the device, in seconds of `Device.now`. Only after `result`."""


class StepRunner(Protocol):
    """What a device runs: the model, the sampler and their memory behind one call (see runner/)."""

    def run(self, inputs: StepInputs) -> StepOutput:
        """Compute one step. Called in order of submission, never twice at once; after one that raises, go on.

        The block tables are updated and swapped blocks copied (out, then in) before anything that can fail: steps
        submitted behind a failed one run all the same, and a stale table would make their rows write into blocks that
        are others' by now. If that itself is impossible, raise EngineDeadError.
        """


class PendingOutput(Protocol):
    """A step's output, still on the device."""

    def tensors(self) -> Sequence["torch.Tensor"]:
        """All that is to be copied to the host."""

    def assemble(self, arrays: Sequence[NDArray[Any]]) -> StepOutput:
        """The output, from the host's copies of `tensors()` in the same order."""


class AsyncStepRunner(Protocol):
    """A StepRunner cut in two, for devices that compute while the host goes on."""

    def execute(self, data: "torch.Tensor", inputs: StepInputs) -> PendingOutput:
        """Launch one step on the current stream; never wait for the device, never branch on what it computes.

        The contract of `StepRunner.run`, with `inputs.data` on the device already, as `data` ([N] int32).
        """


class Device(Protocol):
    """Runs steps in order of submission."""

    def now(self) -> float:
        """Seconds on the clock that all times of this engine are on."""

    def wait_until(self, time: float) -> None:
        """Let time pass with nothing to run (real devices sleep, simulated ones move their clock)."""

    def host_buffer(self, size: int) -> Int32:
        """An int32 array of `size` that the device can read fast (pinned where that means something)."""

    def submit(self, inputs: StepInputs) -> Ticket:
        """Start a step and return at once. `inputs.data` must stay untouched until the ticket's result is there."""

    def close(self) -> None:
        """Finish what was submitted and give back threads and memory. Harmless when called twice."""
