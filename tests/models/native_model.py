"""The native decoder behind the face that every other model has, so that the same drivers test it."""

import numpy as np
import torch

from jitney.kernels.native.kv_cache import NativeKVCache
from jitney.kernels.paged_kv import PagedBatch, PagedKVCache
from jitney.models.decoder.native import NativeDecoder, NativeStep


class PagedNative:
    """A PagedModel over a NativeDecoder; the cache's tensors are shared, in the native code's own order."""

    device = torch.device("cpu")
    supports_graphs = False

    def __init__(self, decoder: NativeDecoder) -> None:
        self.decoder = decoder
        self.spec = decoder.spec

    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, logits_index: torch.Tensor
    ) -> torch.Tensor:
        starts = batch.query_starts.numpy()
        step = NativeStep(
            num_decode_rows=0,
            slots=np.arange(len(starts) - 1, dtype=np.int32),
            positions=batch.context_lens.numpy() - np.diff(starts),
            lens=np.diff(starts),
            prompt_tokens=token_ids.numpy().astype(np.int32),
            last_tokens=np.empty(0, np.int32),
            tables=batch.block_tables.contiguous().numpy(),
            logits_tokens=logits_index.numpy().astype(np.int32),
        )
        native = NativeKVCache(
            *([_array(t) for t in tensors] for tensors in (cache.keys, cache.values)), cache.block_size
        )
        return torch.from_numpy(self.decoder.forward(step, native).copy())


def _array(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
