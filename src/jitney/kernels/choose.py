"""Which implementation of the small operations a device gets. Imports Triton only where it is wanted."""

import logging

import torch

from jitney.kernels.ops import Ops, TorchOps

logger = logging.getLogger(__name__)


def choose_ops(device: torch.device) -> Ops:
    """Triton's on CUDA, where Triton can be imported; else torch's."""
    if device.type != "cuda":
        return TorchOps()
    try:
        from jitney.kernels.triton.ops import TritonOps
    except ImportError as error:
        logger.warning("norms, rotations and activations are not fused, Triton cannot be imported: %s", error)
        return TorchOps()
    return TritonOps()
