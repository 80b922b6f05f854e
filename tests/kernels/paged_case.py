"""Random ragged batches over a paged cache, and attention computed densely: what every kernel is compared with."""

from dataclasses import dataclass

import torch

from jitney.kernels.paged_attention import write_kv
from jitney.kernels.paged_kv import PagedBatch

SCALE = 0.3


@dataclass
class Case:
    """Rows of (past, new) tokens with their full K and V, and the same in a paged cache full of NaN elsewhere."""

    rows: list[tuple[int, int]]
    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    batch: PagedBatch
    new_keys: torch.Tensor
    new_values: torch.Tensor

    def write(self) -> None:
        """Put the step's new K and V into the cache."""
        write_kv(self.new_keys, self.new_values, self.key_cache, self.value_cache, self.batch)


def make_case(
    rows: list[tuple[int, int]],
    block_size: int,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    value_dim: int = 8,
    scattered: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Case:
    generator = torch.Generator().manual_seed(sum(31 * past + new for past, new in rows) + block_size)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    widths = [-(-(past + new) // block_size) for past, new in rows]
    num_blocks = 1 + sum(widths)
    order = torch.randperm(num_blocks - 1, generator=generator) if scattered else torch.arange(num_blocks - 1)
    tables = torch.full((len(rows), max(widths) + 2), 2**31 - 1, dtype=torch.int32)
    key_cache = torch.full((num_blocks, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype)
    value_cache = torch.full((num_blocks, block_size, num_kv_heads, value_dim), float("nan"), dtype=dtype)
    keys, values, positions, kv_index = [], [], [], []
    used = 0
    for row, (past, new) in enumerate(rows):
        blocks = order[used : used + widths[row]] + 1
        used += widths[row]
        tables[row, : widths[row]] = blocks
        places = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[: past + new]
        keys.append(random(past + new, num_kv_heads, head_dim))
        values.append(random(past + new, num_kv_heads, value_dim))
        key_cache.view(-1, num_kv_heads, head_dim)[places[:past]] = keys[-1][:past]
        value_cache.view(-1, num_kv_heads, value_dim)[places[:past]] = values[-1][:past]
        positions.append(torch.arange(past, past + new))
        kv_index.append(places[past:])
    news = [new for _, new in rows]
    starts = [sum(news[:i]) for i in range(len(rows) + 1)]
    context_lens = [past + new for past, new in rows]
    batch = PagedBatch(
        block_tables=tables,
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        positions=torch.cat(positions),
        kv_index=torch.cat(kv_index),
        host_query_starts=starts,
        host_context_lens=context_lens,
        max_query_len=max(news),
        max_context_len=max(context_lens),
    )
    new_keys = torch.cat([k[past:] for k, (past, _) in zip(keys, rows, strict=True)])
    new_values = torch.cat([v[past:] for v, (past, _) in zip(values, rows, strict=True)])
    query = random(starts[-1], num_heads, head_dim)
    return Case(rows, query, keys, values, key_cache, value_cache, batch, new_keys, new_values)


def dense(
    case: Case,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Every row by itself, all scores at once, in float64."""
    outputs, start = [], 0
    num_heads = case.query.shape[1]
    for (past, new), key, value in zip(case.rows, case.keys, case.values, strict=True):
        query = case.query[start : start + new].double()
        start += new
        repeat = num_heads // key.shape[1]
        key = key.double().repeat_interleave(repeat, dim=1)
        value = value.double().repeat_interleave(repeat, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * SCALE
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(past, past + new)[:, None] - torch.arange(past + new)
        visible = distance >= 0
        if sliding_window is not None:
            visible &= distance < sliding_window
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, new, 1)], dim=-1)
        weights = scores.softmax(-1)[..., : past + new]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, value))
    return torch.cat(outputs).float()
