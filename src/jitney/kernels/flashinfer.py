"""Optional: paged attention by FlashInfer (`pip install 'jitney[flashinfer]'`). Not measured and not run on a GPU yet.

Written against flashinfer's documented BatchPrefillWithPagedKVCacheWrapper, which serves rows of any query length; one
kernel for all rows, with split-KV off, so that a row's result does not depend on its batch mates. FlashInfer plans a
step on the host, from host copies of the lengths: steps cannot be captured in CUDA graphs here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from jitney.device.transfer import to_device
from jitney.kernels.paged_kv import PagedBatch

_WORKSPACE_BYTES = 128 * 1024 * 1024
"""What FlashInfer's documentation recommends."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What FlashInfer fixes when it plans: layers that share these share a plan."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None
    softcap: float | None
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class FlashInferAttention:
    """float16 and bfloat16, head sizes 64, 128 and 256, sliding windows, softcap; no sinks.

    make_wrapper: makes a BatchPrefillWithPagedKVCacheWrapper; one is kept for each `Plan`.
    """

    make_wrapper: Callable[[], Any]
    name: str = "flashinfer"
    supports_graphs: bool = False
    _wrappers: dict[Plan, Any] = field(default_factory=dict)

    @classmethod
    def on(cls, device: torch.device) -> "FlashInferAttention":
        """The real one. Raises ImportError where flashinfer is not installed."""
        import flashinfer

        # Wrappers run one after the other on one stream, so they share the scratch.
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return cls(lambda: flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD"))

    def begin(self, batch: PagedBatch, block_size: int) -> "FlashInferStep":
        return FlashInferStep(self, _Pages.of(batch, block_size))

    def wrapper(self, plan: Plan) -> Any:
        if plan not in self._wrappers:
            self._wrappers[plan] = self.make_wrapper()
        return self._wrappers[plan]


@dataclass(frozen=True, slots=True)
class _Pages:
    """A batch in FlashInfer's form; rows without queries keep their pages."""

    query_starts: torch.Tensor
    """[R + 1] int32, host."""
    starts: torch.Tensor
    """[R + 1] int32, host: where each row's pages begin in `indices`."""
    indices: torch.Tensor
    """[pages] int32, device."""
    last_page_lens: torch.Tensor
    """[R] int32, host: tokens in each row's last page, 1 ... block_size."""
    block_size: int

    @classmethod
    def of(cls, batch: PagedBatch, block_size: int) -> "_Pages":
        query_starts = torch.tensor(batch.host_query_starts or batch.query_starts.tolist(), dtype=torch.int32)
        lengths = torch.tensor(batch.host_context_lens or batch.context_lens.tolist(), dtype=torch.int64)
        counts = (lengths + block_size - 1) // block_size
        starts = torch.zeros(len(counts) + 1, dtype=torch.int64)
        starts[1:] = counts.cumsum(0)
        rows = torch.arange(len(counts)).repeat_interleave(counts)
        columns = torch.arange(int(starts[-1])) - starts[rows]
        places = rows * batch.block_tables.shape[1] + columns
        indices = batch.block_tables.flatten()[to_device(places.numpy(), batch.block_tables.device)]
        last = lengths - (counts - 1).clamp(min=0) * block_size
        return cls(query_starts, starts.int(), indices, last.int(), block_size)


@dataclass(frozen=True, slots=True)
class FlashInferStep:
    backend: FlashInferAttention
    pages: _Pages
    _planned: set[Plan] = field(default_factory=set)

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
        """See `jitney.kernels.attention.AttentionStep`. Raises ValueError for sinks."""
        if sinks is not None:
            raise ValueError("FlashInfer attention knows no sinks; choose_attention takes Triton for them.")
        if query.shape[0] == 0:
            return query.new_empty(*query.shape[:2], value_cache.shape[3])
        plan = Plan(query.shape[1], key_cache.shape[2], key_cache.shape[3], scale, sliding_window, softcap, query.dtype)
        wrapper = self.backend.wrapper(plan)
        if plan not in self._planned:
            self._plan(wrapper, plan)
            self._planned.add(plan)
        output: torch.Tensor = wrapper.run(query.contiguous(), (key_cache, value_cache))
        return output

    def _plan(self, wrapper: Any, plan: Plan) -> None:
        wrapper.plan(
            self.pages.query_starts,
            self.pages.starts,
            self.pages.indices,
            self.pages.last_page_lens,
            plan.num_heads,
            plan.num_kv_heads,
            plan.head_dim,
            self.pages.block_size,
            causal=True,
            sm_scale=plan.scale,
            window_left=-1 if plan.sliding_window is None else plan.sliding_window - 1,
            logits_soft_cap=plan.softcap,
            q_data_type=plan.dtype,
            kv_data_type=plan.dtype,
            disable_split_kv=True,
        )
