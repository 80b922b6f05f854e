"""How a GPU's memory is taken, measured. Knows bytes; not what they hold nor how they are shared out."""

import gc
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes at one moment, all work of the device done."""

    total: int
    """The device's."""
    free: int
    """Taken by nobody: no other process, no library."""
    allocated: int
    """In this process's tensors."""
    reserved: int
    """Held by torch for tensors, present and future."""
    peak_reserved: int
    """Most that was held since `start`."""


class MemoryMeter(Protocol):
    """Measures the device's memory between a start and a reading."""

    def start(self) -> None:
        """Wait for the device, give back what torch holds and no tensor uses, and forget the last peak."""

    def read(self) -> MemoryReading:
        """Wait for the device and measure."""


class CudaMemoryMeter:
    """A MemoryMeter of torch's caching allocator and the driver."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self) -> None:
        torch.cuda.synchronize(self._device)
        gc.collect()  # tensors in reference cycles
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> MemoryReading:
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return MemoryReading(
            total=total,
            free=free,
            allocated=torch.cuda.memory_allocated(self._device),
            reserved=torch.cuda.memory_reserved(self._device),
            peak_reserved=torch.cuda.max_memory_reserved(self._device),
        )
