"""A toy model that really reads its past through block tables, and a driver that packs steps by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from jitney.kernels.paged_kv import PagedBatch, PagedKVCache
from jitney.models.base import LayerSpec, ModelSpec
from jitney.runner.model_runner import ModelRunner
from jitney.sampling_params import SamplingParams
from jitney.types import SlotAdmission, StepInputs, StepOutput

VOCAB_SIZE = 61
NUM_CONTEXTS = 997


class ToyModel:
    """Logits are a random function of every token of the context and of its position, both read from the cache."""

    def __init__(self, poisoned_token: int | None = None) -> None:
        self.spec = ModelSpec("toy", "Toy", VOCAB_SIZE, 64, torch.float32, (LayerSpec(1, 1),), 0)
        self.device = torch.device("cpu")
        self.table = torch.randn(NUM_CONTEXTS, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2
        self.poisoned_token = poisoned_token
        """Contexts that hold it get NaN."""
        self.fails = False

    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, logits_index: torch.Tensor
    ) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("forward failed")
        assert batch.host_query_starts == batch.query_starts.tolist()
        assert batch.host_context_lens == batch.context_lens.tolist()
        assert batch.max_context_len == int(batch.context_lens.max())
        assert batch.max_query_len == int(batch.query_starts.diff().max())
        assert batch.query_starts[-1] == len(token_ids) == len(batch.positions)
        cache.keys[0].view(-1)[batch.kv_index] = token_ids.float()
        cache.values[0].view(-1)[batch.kv_index] = batch.positions.float()
        return (
            torch.stack([self._logits_at(int(i), batch, cache) for i in logits_index])
            if len(logits_index)
            else (torch.empty(0, VOCAB_SIZE))
        )

    def _logits_at(self, index: int, batch: PagedBatch, cache: PagedKVCache) -> torch.Tensor:
        row = int(torch.searchsorted(batch.query_starts, index, right=True)) - 1
        length = int(batch.context_lens[row]) - (int(batch.query_starts[row + 1]) - 1 - index)
        blocks = batch.block_tables[row].long()[: -(-length // cache.block_size)]
        if not blocks.all():
            return self.table[0]  # a row on scratch: nobody wants its result
        tokens = cache.keys[0][blocks].flatten()[:length].long().tolist()
        positions = cache.values[0][blocks].flatten()[:length].long().tolist()
        assert positions == list(range(length))
        return self.logits(tokens)

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """[V]: what follows `tokens`; the reference that needs no cache."""
        if self.poisoned_token in tokens:
            return torch.full((VOCAB_SIZE,), torch.nan)
        context = sum((t + 1) * (p * p + 3 * p + 7) for p, t in enumerate(tokens)) % NUM_CONTEXTS
        return self.table[context].clone()

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.logits(tokens).argmax()))
        return tokens[len(prompt) :]


class Driver:
    """Admits requests to slots and packs steps, as a scheduler would; hands out blocks at random."""

    def __init__(self, model: ToyModel, block_size: int = 4, max_num_seqs: int = 4, seed: int = 0) -> None:
        self.model = model
        self.block_size = block_size
        max_blocks = -(-64 // block_size)
        num_blocks = max_num_seqs * max_blocks
        self.runner = ModelRunner(model, num_blocks, block_size, max_num_seqs, 64)
        self.scratch_slots: set[int] = set()
        """Slots whose blocks are all scratch block 0, like those of finished rows in a static batch."""
        self._free = np.random.default_rng(seed).permutation(np.arange(1, num_blocks + 1)).tolist()
        self._blocks: dict[int, list[int]] = {slot: [] for slot in range(max_num_seqs)}
        self._known: dict[int, list[int]] = {}
        self._computed: dict[int, int] = {}
        self._updates: list[tuple[int, int, int]] = []
        self._admissions: list[SlotAdmission] = []
        self.params: dict[int, SamplingParams] = {}
        self.outputs: dict[int, list[int]] = {}

    def admit(
        self, slot: int, prompt: Sequence[int], params: SamplingParams | None = None, seed: int = 0,
        output: Sequence[int] = (), stop_token_ids: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        params = params or SamplingParams(temperature=0)
        self._free = self._blocks[slot] + self._free  # reused at once, to catch stale reads
        self._blocks[slot] = []
        self._known[slot] = [*prompt, *output]
        self._computed[slot] = 0
        self.params[slot], self.outputs[slot] = params, list(output)
        self._admissions.append(
            SlotAdmission(
                slot, params, seed, stop_token_ids, np.array(prompt, np.int32), np.array(output, np.int32)
            )
        )  # fmt: skip

    def step(self, *rows: tuple[int, int]) -> StepOutput:
        """Run (slot, number of tokens) rows; a slot past its known tokens must come first, as a decode row."""
        output = self.runner.run(self.pack(*rows))
        sampling = [slot for slot, _ in rows if self._computed[slot] >= len(self._known[slot])]
        assert len(output.token_ids) == len(sampling)
        for slot, token in zip(sampling, output.token_ids.tolist(), strict=True):
            self.outputs[slot].append(token)
        return output

    def pack(self, *rows: tuple[int, int]) -> StepInputs:
        starts, prompt_tokens, sample_rows, prompt_rows, num_decode = [], [], [], [], 0
        for row, (slot, length) in enumerate(rows):
            start = self._computed[slot]
            self._extend_table(slot, start + length)
            known = self._known[slot][start : start + length]
            if not known:
                assert length == 1
                num_decode += 1
            prompt_tokens += known
            starts.append(start)
            self._computed[slot] = start + length
            if start + length >= len(self._known[slot]):
                sample_rows.append(row)
            if known and self.params[slot].prompt_logprobs is not None:
                prompt_rows.append((row, self.params[slot].prompt_logprobs))
        updates, admissions = self._updates, self._admissions
        self._updates, self._admissions = [], []
        sections = ([s for s, _ in rows], starts, [n for _, n in rows], sample_rows, prompt_tokens)
        flat = [x for section in sections for x in section] + [x for update in updates for x in update]
        return StepInputs(
            0, len(rows), num_decode, len(sample_rows), len(prompt_tokens), len(updates),
            np.array([*flat, -7, -7], np.int32), tuple(admissions), tuple(prompt_rows),
        )  # fmt: skip

    def _extend_table(self, slot: int, length: int) -> None:
        while len(self._blocks[slot]) * self.block_size < length:
            block = 0 if slot in self.scratch_slots else self._free.pop(0)
            self._updates.append((slot, len(self._blocks[slot]), block))
            self._blocks[slot].append(block)


@pytest.fixture
def model() -> ToyModel:
    return ToyModel()


@pytest.fixture
def driver(model: ToyModel) -> Driver:
    return Driver(model)


@pytest.fixture(scope="session")
def make_driver() -> type[Driver]:
    return Driver


@pytest.fixture(scope="session")
def make_model() -> type[ToyModel]:
    return ToyModel
