"""The paged KV cache as tensors, and a ragged batch's view of it. Knows blocks and positions, not requests."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PagedKVCache:
    """K and V of every layer.

    keys[l], values[l]: [num_blocks, block_size, num_kv_heads, head_dim] of layer l. Block 0 is scratch: never part of
    a live request's past, free to be overwritten by rows whose result nobody wants.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """A ragged batch of R rows and T tokens; row i is the tokens [query_starts[i], query_starts[i + 1]).

    All tensors live on the model's device; the `host_` lists are the same numbers for kernels that loop on the host
    (empty where the device needs none).
    """

    block_tables: torch.Tensor
    """[R, max_blocks] int32: the row's blocks in order; entries past its length are undefined."""
    query_starts: torch.Tensor
    """[R + 1] int32, cumulative."""
    context_lens: torch.Tensor
    """[R] int32: tokens of the row in the cache once this step has written its own (past + new)."""
    positions: torch.Tensor
    """[T] int64 position of each token in its sequence."""
    kv_index: torch.Tensor
    """[T] int64: block * block_size + offset where the token's K and V go."""
    host_query_starts: list[int]
    host_context_lens: list[int]
    max_query_len: int
    """No row has more new tokens. An upper bound, and so is the next: a CUDA graph is captured with the largest."""
    max_context_len: int
    """No row has a longer context."""
