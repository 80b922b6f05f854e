"""Host memory that a device copies to and from at full speed. Knows nothing of what is kept in it."""

import torch


def empty_on_host(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of `shape` in host memory, pinned where `device` is a GPU, so that copies run beside the host.

    torch rounds a pinned allocation up to a power of two bytes: ask for large memory in pieces of such a size.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
