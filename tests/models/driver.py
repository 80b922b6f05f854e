"""Greedy generation straight on a PagedModel: several requests at once, prompts in random chunks, scattered blocks."""

import random
from dataclasses import dataclass, field

import torch

from jitney.kernels.paged_kv import PagedBatch, PagedKVCache
from jitney.models.base import ModelSpec, PagedModel


@dataclass
class Sequence:
    tokens: list[int]
    target: int
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


def nan_cache(spec: ModelSpec, num_blocks: int, block_size: int) -> PagedKVCache:
    """A cache that holds NaN wherever nothing was written."""

    def tensors() -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.full((num_blocks, block_size, layer.num_kv_heads, layer.head_dim), float("nan"), dtype=spec.dtype)
            for layer in spec.layers
        )

    return PagedKVCache(tensors(), tensors(), block_size)


def make_batch(rows: list[tuple[Sequence, int]], block_size: int) -> PagedBatch:
    """The next `length` tokens of each sequence as one ragged batch."""
    starts = [0]
    positions: list[int] = []
    for sequence, length in rows:
        starts.append(starts[-1] + length)
        positions += range(sequence.computed, sequence.computed + length)
    width = max(len(sequence.blocks) for sequence, _ in rows)
    tables = torch.tensor([s.blocks + [-1] * (width - len(s.blocks)) for s, _ in rows], dtype=torch.int32)
    owners = [i for i, (_, length) in enumerate(rows) for _ in range(length)]
    kv_index = [
        rows[owner][0].blocks[p // block_size] * block_size + p % block_size
        for owner, p in zip(owners, positions, strict=True)
    ]
    context_lens = [sequence.computed + length for sequence, length in rows]
    return PagedBatch(
        tables,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(context_lens, dtype=torch.int32),
        torch.tensor(positions),
        torch.tensor(kv_index),
        starts,
        context_lens,
        max(length for _, length in rows),
        max(context_lens),
    )


def generate(
    model: PagedModel, prompts: list[list[int]], max_new_tokens: int, block_size: int, seed: int = 0
) -> list[list[int]]:
    """The greedy continuation of each prompt."""
    chance = random.Random(seed)
    sequences = [Sequence(list(prompt), len(prompt) + max_new_tokens) for prompt in prompts]
    num_blocks = sum(-(-sequence.target // block_size) for sequence in sequences) + 1
    free = list(range(1, num_blocks))
    chance.shuffle(free)
    cache = nan_cache(model.spec, num_blocks, block_size)
    while running := [s for s in sequences if len(s.tokens) < s.target]:
        rows = []
        for sequence in chance.sample(running, chance.randint(1, len(running))):
            length = chance.randint(1, len(sequence.tokens) - sequence.computed)
            while len(sequence.blocks) * block_size < sequence.computed + length:
                sequence.blocks.append(free.pop())
            rows.append((sequence, length))
        batch = make_batch(rows, block_size)
        ids = [t for s, length in rows for t in s.tokens[s.computed : s.computed + length]]
        last = batch.query_starts[1:].long() - 1
        logits = model.forward(torch.tensor(ids), batch, cache, last)
        assert logits.dtype is torch.float32 and logits.shape == (len(rows), model.spec.vocab_size)
        for (sequence, length), row in zip(rows, logits, strict=True):
            sequence.computed += length
            if sequence.computed == len(sequence.tokens):
                sequence.tokens.append(int(row.argmax()))
    return [s.tokens[len(prompt) :] for s, prompt in zip(sequences, prompts, strict=True)]
