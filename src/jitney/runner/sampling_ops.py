"""The passes over the logits that pay to be written for the device, and which device gets which.

Three ways with the same results: a host that may look at the tensors' values, because they lie in its own memory;
Triton's kernels; and torch alone for a device whose values the host must not wait for. Imports Triton only where it is
wanted. Knows rows of logits; no slots and no order of rules.
"""

import logging
from typing import Protocol

import numpy as np
import torch

from jitney.runner.top_k_top_p import MAX_CANDIDATES, drop_mask, drop_mask_unseen
from jitney.types import Int32

logger = logging.getLogger(__name__)

GPU_MAX_LOGITS = 2**25
"""Enough to keep a GPU busy; with probabilities and float64 sums about 600 MB at once."""


class SamplingOps(Protocol):
    """What a sampler asks of a device."""

    max_logits: int
    """Logits drawn from at once; bounds the extra memory."""

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """([S] int64, [S] bool) of [S, V] float32 logits: the most likely tokens, and whether their logits are finite.

        Of equal logits the lowest token id wins. A row with NaN, with +inf, or with nothing but -inf is not valid.
        """

    def drop_mask(
        self,
        logits: torch.Tensor,
        probs: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        host_top_k: Int32,
    ) -> torch.Tensor:
        """Which tokens top-k drops, and then top-p over what top-k has left (see `top_k_top_p.drop_mask`).

        Args:
            logits: [N, V] float32, temperature and min-p applied.
            probs: [N, V] float32, softmax of `logits`.
            top_k: [N] int64 (0: off).
            top_p: [N] float64 (inf: off).
            host_top_k: [N], the same as `top_k`.

        Returns:
            [N, V] bool.
        """


def valid_rows(logits: torch.Tensor) -> torch.Tensor:
    """[S] bool: rows of [S, V] logits without NaN and +inf, and with more than -inf."""
    return logits.amax(-1).isfinite()


class HostSamplingOps:
    """For logits in the host's memory: it looks at the values and does no more than they need."""

    max_logits = 2**18
    """As many as stay in the processor's cache from pass to pass."""

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logits.argmax(-1), valid_rows(logits)

    def drop_mask(
        self, logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, host_top_k: Int32
    ) -> torch.Tensor:
        return drop_mask(logits, probs, top_k, top_p, enough_candidates(host_top_k) or MAX_CANDIDATES)


class UnseenSamplingOps:
    """Torch alone, for a device whose values the host must not wait for: where no top-k bounds it, it sorts all."""

    max_logits = GPU_MAX_LOGITS

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return logits.argmax(-1), valid_rows(logits)

    def drop_mask(
        self, logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, host_top_k: Int32
    ) -> torch.Tensor:
        return drop_mask_unseen(logits, probs, top_k, top_p, enough_candidates(host_top_k) or logits.shape[-1])


class TritonSamplingOps:
    """Triton's kernels: one pass for greedy tokens, and no sort."""

    max_logits = GPU_MAX_LOGITS

    def __init__(self) -> None:
        from jitney.kernels.triton import greedy, top_k_top_p

        self._greedy, self._top_k_top_p = greedy, top_k_top_p

    def most_likely(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._greedy.most_likely(logits)

    def drop_mask(
        self, logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, host_top_k: Int32
    ) -> torch.Tensor:
        return self._top_k_top_p.drop_mask(logits, probs, top_k, top_p)


def choose_sampling_ops(device: torch.device) -> SamplingOps:
    """The host's own on a CPU; Triton's on CUDA, where Triton can be imported; else torch's that never look."""
    if device.type == "cpu":
        return HostSamplingOps()
    if device.type == "cuda":
        try:
            return TritonSamplingOps()
        except ImportError as error:
            logger.warning("top-k and top-p sort the whole vocabulary, Triton cannot be imported: %s", error)
    return UnseenSamplingOps()


def enough_candidates(host_top_k: Int32) -> int | None:
    """How many of the most likely tokens settle every row; None if some row has no top-k, or a large one."""
    is_small = bool(np.all((host_top_k > 0) & (host_top_k < MAX_CANDIDATES)))
    return int(host_top_k.max()) + 1 if is_small else None
