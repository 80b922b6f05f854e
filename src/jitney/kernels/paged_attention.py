"""Reference attention over a paged KV cache, in plain torch: correct on any device, and fast enough on a CPU.

K and V are read per row through its block table, prefill, chunk and decode rows alike: no padding, no mask over the
batch, no copy of a whole past. Neighbouring blocks are read in place, scattered ones are gathered one bounded tile at
a time, and the tiles are merged by online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022, and
Flash-Decoding, Dao et al. 2023). Knows no model and no request.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from jitney.kernels.paged_kv import PagedBatch
from jitney.kernels.read_plan import KeyTile, QueryTile, plan_reads

_HIDDEN = -1e30
"""Score of a key that a query may not see. Finite, so that a tile hidden as a whole gives no NaN: whatever it adds is
multiplied by exp(_HIDDEN - m) = 0 as soon as a visible key (every query sees itself) has set the running maximum m."""


def write_kv(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, batch: PagedBatch
) -> None:
    """Put the step's new K and V where `batch.kv_index` says.

    Args:
        key, value: [T, num_kv_heads, head_dim], any float dtype.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], one layer's, contiguous over the
            first two dimensions. Written in place.
    """
    key_cache.view(-1, *key_cache.shape[2:]).index_copy_(0, batch.kv_index, key.to(key_cache.dtype))
    value_cache.view(-1, *value_cache.shape[2:]).index_copy_(0, batch.kv_index, value.to(value_cache.dtype))


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    *,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    plan: Sequence[QueryTile] | None = None,
) -> torch.Tensor:
    """Causal attention of every token to its own sequence; the step's K and V must be in the cache already.

    Nothing past a row's context length is read: the cache may hold anything there. Sums are kept in float32.

    Args:
        query: [T, num_heads, head_dim]; num_heads is a multiple of num_kv_heads (grouped-query attention).
        key_cache: [num_blocks, block_size, num_kv_heads, head_dim].
        value_cache: [num_blocks, block_size, num_kv_heads, value_head_dim].
        scale: factor on the scores.
        sliding_window: tokens a query sees, itself included (None: all).
        softcap: scores become softcap * tanh(scores / softcap) (Gemma 2).
        sinks: [num_heads] scores of a key that takes weight and has no value (gpt-oss).
        plan: `plan_reads` of the same batch, block size and window, if the caller has it already.

    Returns:
        [T, num_heads, value_head_dim], dtype of `query`.
    """
    if plan is None:
        plan = plan_reads(batch, key_cache.shape[1], sliding_window)
    output = query.new_empty(*query.shape[:2], value_cache.shape[3])
    plain = softcap is None and sinks is None
    for tile in plan:
        rows = slice(tile.start, tile.stop)
        if plain and tile.is_simple:
            output[rows] = _fused(query[rows], key_cache, value_cache, tile.keys[0], scale)
        else:
            output[rows] = _merged(query[rows], key_cache, value_cache, tile, scale, sliding_window, softcap, sinks)
    return output


def _read(cache: torch.Tensor, tile: KeyTile) -> torch.Tensor:
    """[tokens, num_kv_heads, head_dim]; a view of the cache where the blocks are neighbours."""
    blocks = cache[tile.blocks] if isinstance(tile.blocks, slice) else cache.index_select(0, tile.blocks)
    return blocks.flatten(0, 1)[tile.skip : tile.skip + tile.stop - tile.start]


def _fused(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, keys: KeyTile, scale: float
) -> torch.Tensor:
    """One query over one tile, or a whole prompt over itself: torch's own fused kernel, measured about 2x faster."""
    length, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    key = _read(key_cache, keys).to(query.dtype).transpose(0, 1).unsqueeze(0)
    value = _read(value_cache, keys).to(query.dtype).transpose(0, 1).unsqueeze(0)
    if length == 1:
        # The heads of a group stand where the kernel expects query positions: K and V are read once per group.
        grouped = query.reshape(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        return F.scaled_dot_product_attention(grouped, key, value, scale=scale).reshape(1, num_heads, -1)
    output = F.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0), key, value, is_causal=True, scale=scale, enable_gqa=num_heads > num_kv_heads
    )
    return output.squeeze(0).transpose(0, 1)


def _merged(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tile: QueryTile,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Online softmax over the key tiles. Shapes: H kv heads, G query heads each, n queries, L keys, D head dim."""
    n, num_heads, head_dim = query.shape
    heads, group = key_cache.shape[2], num_heads // key_cache.shape[2]
    scaled = (query.float() * scale).view(n, heads, group, head_dim).permute(1, 2, 0, 3).reshape(heads, group * n, -1)
    if sinks is None:
        peak = scaled.new_full((heads, group * n, 1), _HIDDEN)
        total = torch.zeros_like(peak)
    else:
        peak = sinks.float().view(heads, group, 1).expand(heads, group, n).reshape(heads, group * n, 1)
        total = torch.ones_like(peak)
    summed = scaled.new_zeros(heads, group * n, value_cache.shape[3])
    for keys in tile.keys:
        scores = torch.bmm(scaled, _read(key_cache, keys).float().permute(1, 2, 0))
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        hidden = _hidden_keys(tile, keys, sliding_window, scores.device)
        if hidden is not None:
            scores.view(heads, group, n, -1).masked_fill_(hidden, _HIDDEN)
        new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        weights = scores.sub_(new_peak).exp_()
        keep = (peak - new_peak).exp_()
        total = total * keep + weights.sum(-1, keepdim=True)
        summed = torch.baddbmm(summed * keep, weights, _read(value_cache, keys).float().transpose(0, 1))
        peak = new_peak
    merged = (summed / total).view(heads, group, n, -1).permute(2, 0, 1, 3)
    return merged.reshape(n, num_heads, -1).to(query.dtype)


def _hidden_keys(
    tile: QueryTile, keys: KeyTile, sliding_window: int | None, device: torch.device
) -> torch.Tensor | None:
    """[n, L] bool, True where a query may not see a key; None where all is visible (most tiles)."""
    last_position = tile.position + tile.stop - tile.start - 1
    crosses_diagonal = keys.stop - 1 > tile.position
    crosses_window = sliding_window is not None and last_position - keys.start >= sliding_window
    if not crosses_diagonal and not crosses_window:
        return None
    query_positions = torch.arange(tile.position, last_position + 1, device=device)[:, None]
    distance = query_positions - torch.arange(keys.start, keys.stop, device=device)
    hidden = distance < 0
    return hidden if sliding_window is None else hidden | (distance >= sliding_window)
