"""What the CUDA device needs of a stream library: queues that run side by side, and events that join them.

device/cuda_streams.py is the real one. The tests bring one that runs the queued work as late, as early and as
interleaved as the events allow; so all that device/cuda.py says to the hardware, it says through these few verbs.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class Event(Protocol):
    """A point in a stream's queue."""

    def done(self) -> bool:
        """Whether everything queued before it has run. Raises what the device raises."""

    def synchronize(self) -> None:
        """Let the host wait for it. Raises what the device raises."""

    def seconds_since(self, earlier: "Event") -> float:
        """Device time from one event to another; both timed, recorded and done. Raises what the device raises."""


class Stream(Protocol):
    """Work in order; two streams have no order but the one that events give them."""

    def launch(self, work: Callable[[], None], *, reads: Sequence[object], writes: Sequence[object]) -> None:
        """Queue what `work` asks of the device, and return at once.

        The real library calls `work` now, with this stream as the current one: the kernels it launches run later.
        Others may call it as late as the queue allows, so `work` takes nothing from the host that may change.

        Args:
            reads, writes: the buffers that `work` touches, as objects; nothing is done with them on a GPU. A numpy
                array is host memory.
        """

    def record(self, event: Event) -> None:
        """Put the event behind all that is queued."""

    def wait(self, event: Event) -> None:
        """Run nothing queued from now on before the event's last record is done. The host does not wait."""


class StreamLibrary(Protocol):
    """Makes streams, events and memory on one device."""

    def stream(self, name: str) -> Stream:
        """A stream of its own, never the default one."""

    def event(self, timed: bool = False) -> Event:
        """An event that is not recorded yet; only timed ones know `seconds_since`."""

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8 host memory that the device copies to and from without the host's help."""

    def on_device(self, size: int) -> torch.Tensor:
        """[size] int32 on the device."""

    def synchronize(self) -> None:
        """Let the host wait for all that the device has been asked to do, on any stream."""
