"""The vocabulary: what travels between the layers. numpy and plain Python; imports no other layer.

Request ──scheduler──> StepPlan ──StepBuffer.fill──> StepInputs ──device/runner──> StepOutput ──scheduler──> tokens
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from jitney.sampling_params import SamplingParams

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]


def no_block_copies() -> Int32:
    """[0, 2]"""
    return np.empty((0, 2), dtype=np.int32)


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop token or a stop string."""
    LENGTH = "length"
    """max_tokens or max_model_len reached."""
    ABORT = "abort"
    """The caller went away, or the engine was closed."""
    ERROR = "error"
    """The request failed; its error says why."""


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, of the model's raw distribution (before penalties and temperature)."""

    token_id: int
    logprob: float
    rank: int
    """1 = the most likely token."""
    top_token_ids: Sequence[int]
    top_logprobs: Sequence[float]


@dataclass(slots=True)
class RequestMetrics:
    """Times are seconds on the device's clock (None: it has not happened)."""

    arrival_time: float = 0.0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    num_preemptions: int = 0


@dataclass(slots=True)
class TokenUpdate:
    """News of one request: tokens since the last update, and how it ended if it has."""

    request: "Request"
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: Exception | None = None


Listener = Callable[[TokenUpdate], None]


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate. The first block is the caller's, the second the engine's."""

    request_id: str
    prompt_token_ids: Int32
    params: SamplingParams
    max_tokens: int
    """Resolved: never None, and prompt + max_tokens <= max_model_len."""
    stop_token_ids: tuple[int, ...]
    """Resolved: the caller's and, unless ignore_eos, the model's."""
    seed: int
    """Resolved: never None."""
    priority: int = 0
    cache_salt: str = ""
    listener: Listener | None = None
    """Called on the engine's thread with the end of the request, and with every token if `streams`."""
    streams: bool = False

    status: RequestStatus = RequestStatus.WAITING
    arrival_index: int = -1
    """Order of arrival, given by the scheduler; kept over preemptions."""
    slot: int | None = None
    output_token_ids: list[int] = field(default_factory=list)
    """Filled when the request leaves its slot (preempted or finished)."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each prompt token but the first, if asked for."""
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    block_digests: list[bytes] = field(default_factory=list)
    """Hash chain over the salt and the full blocks known so far (see kv/prefix_cache.py)."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED


@dataclass(frozen=True, slots=True)
class SlotAdmission:
    """A request takes a slot: the device sets up the slot's sampling state before the step runs."""

    slot: int
    params: SamplingParams
    seed: int
    stop_token_ids: tuple[int, ...]
    """Forbidden until min_tokens outputs exist."""
    prompt_token_ids: Int32
    output_token_ids: Int32
    """Tokens already generated (after a preemption), else empty."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward pass, decided. R rows, decode rows first; T tokens; S rows that sample.

    A row is one request in this step: `row_lens[i]` tokens at positions `row_starts[i]`, `row_starts[i] + 1`, ...
    A decode row has one token, which the device already holds (`last token of the slot`); the tokens of the other
    rows are in `prompt_tokens`, row after row. The plan owns its blocks until it has been collected.
    """

    step_id: int
    num_decode_rows: int
    row_slots: Int32
    """[R] slot of each row."""
    row_starts: Int32
    """[R] position of the row's first token = tokens of the slot already in the KV cache."""
    row_lens: Int32
    """[R] tokens of the row in this step."""
    prompt_tokens: Int32
    """[T - num_decode_rows]"""
    sample_rows: Int32
    """[S] rows whose last token yields a new one (all decode rows, and prefill rows that reach their end)."""
    table_updates: Int32
    """[U, 3] (slot, index in its block table, block): to be applied, in order, before the forward pass."""
    admissions: tuple[SlotAdmission, ...]
    prompt_logprob_rows: tuple[tuple[int, int], ...] = ()
    """(row, number of top logprobs) of prefill rows that want logprobs for their prompt tokens."""
    swap_out: Int32 = field(default_factory=no_block_copies)
    """[O, 2] (device block, host block): to be copied to the host before the copies in and the forward pass."""
    swap_in: Int32 = field(default_factory=no_block_copies)
    """[I, 2] (device block, host block): to be copied to the device before the forward pass."""

    @property
    def num_rows(self) -> int:
        return len(self.row_slots)

    @property
    def num_tokens(self) -> int:
        return self.num_decode_rows + len(self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A StepPlan packed for the device: one contiguous int32 array and the host-known numbers to cut it by.

    Sections of `data`, in this order: row_slots [R], row_starts [R], row_lens [R], sample_rows [S],
    prompt_tokens [P], table_updates [U * 3], swap_out [O * 2], swap_in [I * 2].
    """

    step_id: int
    num_rows: int
    num_decode_rows: int
    num_sample_rows: int
    num_prompt_tokens: int
    num_table_updates: int
    data: Int32
    admissions: tuple[SlotAdmission, ...]
    prompt_logprob_rows: tuple[tuple[int, int], ...]
    num_swap_out: int = 0
    num_swap_in: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_decode_rows + self.num_prompt_tokens

    def section_sizes(self) -> tuple[int, int, int, int, int, int, int, int]:
        r, s, copies = self.num_rows, self.num_sample_rows, (2 * self.num_swap_out, 2 * self.num_swap_in)
        return r, r, r, s, self.num_prompt_tokens, 3 * self.num_table_updates, *copies


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """Log-probabilities of L positions with the K most likely tokens each (K = the largest number asked for)."""

    token_ids: Int32
    """[L]"""
    logprobs: Float32
    """[L]"""
    ranks: Int32
    """[L]"""
    top_token_ids: Int32
    """[L, K]"""
    top_logprobs: Float32
    """[L, K]"""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gives back, on the host. Row order is that of `StepPlan.sample_rows`."""

    token_ids: Int32
    """[S] sampled tokens."""
    is_valid: Bool
    """[S] False where the logits held NaN: that request fails."""
    logprobs: LogprobRows | None = None
    logprob_rows: Int32 | None = None
    """[L] index into token_ids of each position of `logprobs` (rows that asked for logprobs)."""
    prompt_logprobs: dict[int, LogprobRows] = field(default_factory=dict)
    """row (index into row_slots) -> logprobs of the prompt tokens that this row's positions predict."""
