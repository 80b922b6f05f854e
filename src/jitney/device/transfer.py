"""The one way from a numpy array to a tensor on the device: no wait for the device, no copy from pageable memory."""

from typing import Any

import torch
from numpy.typing import NDArray


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor on `device`, in order with the work queued on the current stream.

    On a GPU the array is first copied to pinned memory, which torch holds until the transfer is done: the caller may
    change the array at once. On a CPU the tensor shares the array's memory.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return _pinned(tensor).to(device, non_blocking=True)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory()
