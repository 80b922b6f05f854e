"""A profile run on the CPU: the steps are real, the memory they take is the meter's invention."""

import gc
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jitney.config import EngineConfig
from jitney.device.gpu_memory import MemoryReading
from jitney.errors import ConfigError
from jitney.kernels.paged_kv import PagedBatch, PagedKVCache
from jitney.runner.profile_run import largest_decode_step, largest_step, profile_run, smallest_mixed_step
from jitney.types import StepInputs

from .plain_model import MAX_POSITION, PlainModel

BLOCK_SIZE = 4
CONFIG = EngineConfig(max_num_seqs=3, max_num_batched_tokens=20, block_size=BLOCK_SIZE)
PROMPT_TOKENS = 18
"""Of the largest step, which has two decode rows."""
CACHE = 2 * BLOCK_SIZE * PlainModel().spec.kv_bytes_per_token()
TENSORS, HELD, TOTAL, FREE = 70_000, 72_000, 200_000, 100_000


@dataclass
class Step:
    num_tokens: int
    num_logits: int
    longest: int


@dataclass
class WatchedModel(PlainModel):
    """Remembers its steps, and the caches they were given."""

    out_of_memory_at: int | None = None
    steps: list[Step] = field(default_factory=list)
    caches: list[weakref.ref[torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def forward(
        self, token_ids: torch.Tensor, batch: PagedBatch, cache: PagedKVCache, logits_index: torch.Tensor
    ) -> torch.Tensor:
        if len(self.steps) == self.out_of_memory_at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.steps.append(Step(len(token_ids), len(logits_index), int(batch.context_lens.max())))
        self.caches.append(weakref.ref(cache.keys[0]))
        assert not batch.kv_index.ge(cache.block_size).any(), "all rows lie on scratch"
        return super().forward(token_ids, batch, cache, logits_index)


class Meter:
    """A token takes 100 bytes while it is computed, a row of logits 1000."""

    def __init__(self, model: WatchedModel) -> None:
        self.model = model
        self.seen = 0
        self.num_starts = 0

    def start(self) -> None:
        self.seen = len(self.model.steps)
        self.num_starts += 1

    def read(self) -> MemoryReading:
        steps = self.model.steps[self.seen :]
        peak = max((100 * step.num_tokens + 1000 * step.num_logits for step in steps), default=0)
        return MemoryReading(
            total=TOTAL, free=FREE, allocated=TENSORS, reserved=HELD if steps else TENSORS, peak_reserved=TENSORS + peak
        )


def test_it_measures_the_largest_step_and_the_largest_decode_step_on_top_of_the_weights() -> None:
    model = WatchedModel()
    profile = profile_run(model, CONFIG, Meter(model))
    assert model.steps == [
        Step(2, 1, MAX_POSITION),
        Step(20, 3 + PROMPT_TOKENS, MAX_POSITION),
        Step(3, 3, MAX_POSITION),
    ]
    assert profile.weights == TENSORS - CACHE
    assert profile.activations == 20 * 100 + (3 + PROMPT_TOKENS) * 1000
    assert profile.decode_activations == 3 * 100 + 3 * 1000
    assert profile.other == TOTAL - FREE - HELD
    assert profile.total == TOTAL


def test_a_given_length_is_the_longest_context() -> None:
    model = WatchedModel()
    profile_run(model, EngineConfig(max_model_len=30, max_num_seqs=2, block_size=BLOCK_SIZE), Meter(model))
    assert model.steps == [Step(2, 1, 30), Step(60, 62, 30), Step(2, 2, 30)]


def test_it_leaves_no_trace() -> None:
    model, fresh = WatchedModel(), PlainModel()
    meter = Meter(model)
    profile_run(model, CONFIG, meter)
    gc.collect()
    assert len(model.caches) == 3 and all(cache() is None for cache in model.caches)
    assert meter.seen == len(model.steps), "what was held has been given back since the last step"
    assert vars(fresh).keys() <= vars(model).keys()
    for name in ("_tokens", "_positions", "_head"):
        assert torch.equal(getattr(model, name), getattr(fresh, name))


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_step_that_does_not_fit_is_refused_with_the_numbers_and_its_memory_is_given_back(step: int) -> None:
    model = WatchedModel(out_of_memory_at=step)
    meter = Meter(model)
    with pytest.raises(ConfigError) as error:
        profile_run(model, EngineConfig(max_num_seqs=3, max_num_batched_tokens=20, dtype="bfloat16"), meter)
    for words in ("max_num_batched_tokens=20", "max_num_seqs=3", f"max_model_len={MAX_POSITION}", "dtype=bfloat16"):
        assert words in str(error.value)
    assert meter.seen == len(model.steps) == step


def test_a_length_beyond_the_model_is_refused_before_anything_runs() -> None:
    model = WatchedModel()
    with pytest.raises(ConfigError, match="max_model_len=65 is above the 64"):
        profile_run(model, EngineConfig(max_model_len=65), Meter(model))
    assert not model.steps


@given(st.integers(1, 40), st.integers(0, 200), st.integers(1, 50), st.none() | st.integers(1, 20))
def test_the_largest_step_is_one_the_engine_could_have(
    max_num_seqs: int, more_tokens: int, max_model_len: int, chunk: int | None
) -> None:
    config = EngineConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_seqs + more_tokens, prefill_chunk_size=chunk
    )
    step, decode = largest_step(config, max_model_len), largest_decode_step(config, max_model_len)
    mixed = smallest_mixed_step(config, max_model_len)
    longest = min(max_model_len, chunk or max_model_len)
    assert step.num_tokens == min(config.max_num_batched_tokens, max_num_seqs * longest)
    assert decode.num_tokens == decode.num_decode_rows == max_num_seqs
    assert mixed.num_tokens == min(2, max_model_len, config.max_num_batched_tokens)
    for inputs, num_rows in ((step, max_num_seqs), (decode, max_num_seqs), (mixed, 1)):
        slots, starts, lens, sample_rows = sections(inputs)
        assert inputs.num_rows == inputs.num_sample_rows == num_rows
        assert slots.tolist() == sample_rows.tolist() == list(range(num_rows))
        assert len(inputs.data) == sum(inputs.section_sizes())
        assert (lens[: inputs.num_decode_rows] == 1).all() and lens.sum() == inputs.num_tokens
        assert (
            starts.min() >= 0
            and lens.max() <= max(longest, mixed.num_tokens)
            and (starts + lens).max() == max_model_len
        )


@given(st.integers(1, 5), st.integers(0, 1500), st.booleans())
def test_it_computes_as_many_prompt_logprobs_as_a_step_may_have(seats: int, more_tokens: int, is_chunked: bool) -> None:
    config = EngineConfig(
        max_num_seqs=seats, max_num_batched_tokens=seats + more_tokens, enable_chunked_prefill=is_chunked
    )
    step = largest_step(config, 400)
    _, starts, lens, _ = sections(step)
    rows = [row for row, _ in step.prompt_logprob_rows]
    wanted = [len(step.admissions[row].prompt_token_ids) - starts[row] - 1 for row in rows]
    assert all(count <= lens[row] for count, row in zip(wanted, rows, strict=True))
    assert sum(wanted) == min(config.prompt_logprob_tokens, step.num_prompt_tokens)


def sections(inputs: StepInputs) -> list[np.ndarray]:
    return np.split(inputs.data, np.cumsum(inputs.section_sizes()))[:4]
