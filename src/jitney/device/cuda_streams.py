"""The stream library of a real GPU: torch.cuda's streams, events and pinned memory behind device/streams.py."""

from collections.abc import Callable, Sequence

import torch

from jitney.device.streams import Event


class CudaEvent:
    """Untimed ones are cheaper to record and to wait for."""

    def __init__(self, timed: bool) -> None:
        self.event = torch.cuda.Event(enable_timing=timed)

    def done(self) -> bool:
        return bool(self.event.query())

    def synchronize(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, CudaEvent)
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class CudaStream:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def launch(self, work: Callable[[], None], *, reads: Sequence[object], writes: Sequence[object]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def record(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        event.event.record(self._stream)

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self._stream.wait_event(event.event)


class CudaStreams:
    """Implements StreamLibrary (device/streams.py) on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self, name: str) -> CudaStream:
        return CudaStream(self._device)

    def event(self, timed: bool = False) -> CudaEvent:
        return CudaEvent(timed)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        # torch keeps freed pinned memory and gives it out again once the copies it took part in are done
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def on_device(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, device=self._device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)
