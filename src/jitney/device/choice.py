"""Which device `EngineConfig.device` means on this machine. Knows what torch can see; loads nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from jitney.config import DeviceName
from jitney.errors import ConfigError


def choose_device(name: DeviceName) -> Literal["cuda", "cpu", "simulated"]:
    """`auto` is the GPU if torch can use one, else the CPU.

    Raises:
        ConfigError: `cuda` was asked for and torch cannot use a GPU; says why.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device='cuda' needs a GPU: {_why_not()}; set device to 'cpu' or 'auto' to run without")
    return name


def made_current(device: torch.device) -> AbstractContextManager[object]:
    """What runs inside has `device` as the current one.

    torch's own operations go to where their tensors are; Triton launches on the current device, whatever the tensors.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _why_not() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA (install a CUDA build of torch)"
    try:
        torch.cuda.init()
    except Exception as error:
        return f"torch {torch.__version__} for CUDA {torch.version.cuda} says: {error}"
    return (
        f"torch {torch.__version__} for CUDA {torch.version.cuda} sees none (check the driver and CUDA_VISIBLE_DEVICES)"
    )
