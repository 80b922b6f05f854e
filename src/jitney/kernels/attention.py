"""What a model asks of attention over a paged KV cache, who can answer it, and which one is taken.

A backend begins each step with its batch; the step it returns serves every layer, so that whatever depends on the
batch alone is worked out once. Knows no model and no request; imports a backend only when it is chosen.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Protocol

import torch

from jitney.kernels.paged_attention import paged_attention
from jitney.kernels.paged_kv import PagedBatch
from jitney.kernels.read_plan import QueryTile, plan_reads

_HALF = (torch.float16, torch.bfloat16)
_PAGE = {None: 256, "FA2": 256, "FA3": 16}
"""Tokens of which torch's Flash Attention wants a page to be a multiple. FA4 reads no pages on Hopper."""


class AttentionStep(Protocol):
    """One step's batch, shared by all layers."""

    def attend(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        *,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention of every token to its own sequence; the step's K and V must be in the cache already.

        Nothing past a row's context length is read: the cache may hold anything there. Sums are kept in float32.

        Args:
            query: [T, num_heads, head_dim]; num_heads is a multiple of num_kv_heads (grouped-query attention).
            key_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous.
            value_cache: [num_blocks, block_size, num_kv_heads, value_head_dim], contiguous.
            scale: factor on the scores.
            sliding_window: tokens a query sees, itself included (None: all).
            softcap: scores become softcap * tanh(scores / softcap) (Gemma 2).
            sinks: [num_heads] scores of a key that takes weight and has no value (gpt-oss).

        Returns:
            [T, num_heads, value_head_dim], dtype of `query`.
        """


class AttentionBackend(Protocol):
    """A way to compute paged attention."""

    @property
    def name(self) -> str: ...

    @property
    def supports_graphs(self) -> bool:
        """Whether a step can be captured in a CUDA graph: it reads nothing back to the host, and uses no host value of
        the batch but `max_query_len` and `max_context_len`."""

    def begin(self, batch: PagedBatch, block_size: int) -> AttentionStep: ...


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """The reference, in plain torch: every case on every device; loops over rows on the host."""

    name: str = "torch"
    supports_graphs: bool = False

    def begin(self, batch: PagedBatch, block_size: int) -> "TorchStep":
        return TorchStep(batch, block_size)


@dataclass(frozen=True, slots=True)
class TorchStep:
    batch: PagedBatch
    block_size: int
    _plans: dict[int | None, list[QueryTile]] = field(default_factory=dict)
    """The read plan of all layers with the same window, made once."""

    def attend(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        scale: float,
        *,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `AttentionStep`."""
        if sliding_window not in self._plans:
            self._plans[sliding_window] = plan_reads(self.batch, self.block_size, sliding_window)
        return paged_attention(
            query,
            key_cache,
            value_cache,
            self.batch,
            scale,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=sinks,
            plan=self._plans[sliding_window],
        )


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """What a model and its cache need, as far as backends differ."""

    on_cuda: bool
    dtype: torch.dtype
    head_dims: frozenset[int]
    block_size: int
    has_softcap: bool = False
    has_sinks: bool = False
    has_window: bool = False


@dataclass(frozen=True, slots=True)
class Installed:
    """What this machine's packages offer."""

    flashinfer: bool
    varlen: bool
    """torch's varlen_attn takes block tables and a number of splits."""
    flash_impl: str | None
    """The Flash Attention that torch was told to use ("FA3"), None for its own (FA2)."""
    triton: bool


def installed() -> Installed:
    """Look, without importing what may be slow to import or fail."""
    try:
        from torch.nn.attention.varlen import varlen_attn

        parameters = set(inspect.signature(varlen_attn).parameters)
    except ImportError:
        parameters = set()
    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)
    return Installed(
        flashinfer=find_spec("flashinfer") is not None,
        varlen={"block_table", "seqused_k", "num_splits", "window_size", "enable_gqa"} <= parameters,
        flash_impl=current(),
        triton=find_spec("triton") is not None,
    )


def attention_order(case: AttentionCase, here: Installed) -> list[str]:
    """The backends that serve the case exactly, best first; "torch" is always the last.

    The limits are those of the kernels' own checks; FlashInfer's are built for the head sizes 64, 128 and 256.
    """
    usual = case.on_cuda and case.dtype in _HALF and not case.has_sinks
    page = _PAGE.get(here.flash_impl)
    flash = page is not None and case.block_size % page == 0
    flash = flash and all(dim % 8 == 0 and dim <= 256 for dim in case.head_dims)
    fits = {
        "flashinfer": here.flashinfer and usual and case.head_dims <= {64, 128, 256},
        "varlen": here.varlen and usual and flash and not case.has_softcap,
        "triton": here.triton and case.on_cuda,
        "torch": True,
    }
    return [name for name, serves in fits.items() if serves]


def choose_attention(
    device: torch.device,
    dtype: torch.dtype,
    head_dims: Sequence[int],
    block_size: int,
    *,
    has_softcap: bool,
    has_sinks: bool,
    has_window: bool,
) -> AttentionBackend:
    """The best installed backend for a model (see `attention_order`).

    Args:
        dtype: of activations and cache.
        head_dims: head sizes of K and V over all layers.
        block_size: tokens in one block of the cache.
        has_softcap, has_sinks, has_window: whether any layer has them.
    """
    case = AttentionCase(
        device.type == "cuda", dtype, frozenset(head_dims), block_size, has_softcap, has_sinks, has_window
    )
    here = installed()
    return make_attention(attention_order(case, here)[0], device, here)


def make_attention(name: str, device: torch.device, here: Installed) -> AttentionBackend:
    """The backend of that name, one of `attention_order`'s. Raises ImportError where its package is missing."""
    if name == "flashinfer":
        from jitney.kernels.flashinfer import FlashInferAttention

        return FlashInferAttention.on(device)
    if name == "varlen":
        from torch.nn.attention.varlen import varlen_attn

        from jitney.kernels.varlen import VarlenAttention

        return VarlenAttention(varlen_attn, takes_key_starts=here.flash_impl != "FA3")
    if name == "triton":
        from jitney.kernels.triton.attention import TritonAttention

        return TritonAttention()
    return TorchAttention()
