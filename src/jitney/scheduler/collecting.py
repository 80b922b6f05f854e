"""What a collected step means for the running requests. Vectorised: Python work only for rows that end, that something
watches, that bring their first token, or that fill a block.
"""

from dataclasses import dataclass, field

import numpy as np

from jitney.errors import StepFailedError
from jitney.scheduler.seating import Seating
from jitney.scheduler.slots import Phase
from jitney.types import (
    FinishReason,
    Int32,
    Int64,
    LogprobRows,
    Request,
    RequestStatus,
    StepOutput,
    StepPlan,
    TokenLogprobs,
)


@dataclass(slots=True)
class CollectedStep:
    """News for the engine: who ends and why, and the tokens that somebody listens for."""

    num_new_tokens: int = 0
    streamed: list[tuple[Request, int]] = field(default_factory=list)
    """(request, its new token)"""
    ended: list[tuple[Request, FinishReason, Exception | None]] = field(default_factory=list)


def collect_step(seating: Seating, plan: StepPlan, output: StepOutput, now: float) -> CollectedStep:
    """Take in the tokens of a step. Tokens of requests that ended meanwhile are thrown away."""
    slots = seating.slots
    step = CollectedStep()
    rows = plan.row_slots[plan.sample_rows]
    counts = slots.counts(rows)
    if not output.is_valid.all():
        for slot in rows[counts & ~output.is_valid].tolist():
            _fail_for_nan(seating, slot, step)
        counts &= output.is_valid
    if plan.prompt_logprob_rows:
        _keep_prompt_logprobs(seating, plan, output)
    if output.logprobs is not None and output.logprob_rows is not None:
        _keep_logprobs(seating, rows, counts, output.logprob_rows, output.logprobs)
    tokens = output.token_ids
    if not counts.all():
        rows, tokens = rows[counts], tokens[counts]
    position = slots.num_tokens[rows]
    slots.tokens[rows, position] = tokens
    slots.num_tokens[rows] = position + 1
    step.num_new_tokens = len(rows)
    _note_first_tokens(seating, rows, position, now)
    _offer_full_blocks(seating, rows, position)
    watched = slots.watched[rows]
    if watched.any():
        for slot, token in zip(rows[watched].tolist(), tokens[watched].tolist(), strict=True):
            request = slots.request[slot]
            assert request is not None
            step.streamed.append((request, token))
    stopped = (slots.stop_ids[rows] == tokens[:, None]).any(axis=1)
    by_length = (slots.phase[rows] == Phase.LAST) & (slots.last_step[rows] == plan.step_id)
    ended = stopped | by_length
    if ended.any():
        for slot, by_stop in zip(rows[ended].tolist(), stopped[ended].tolist(), strict=True):
            request = slots.request[slot]
            assert request is not None
            step.ended.append((request, FinishReason.STOP if by_stop else FinishReason.LENGTH, None))
    seating.collected_step = plan.step_id
    seating.vacate_pending()
    return step


def requests_of(seating: Seating, plan: StepPlan) -> list[Request]:
    """The running requests with a row or an admission in a step; those that will start again anyway do not count."""
    occupants = [seating.slots.request[slot] for slot in plan.row_slots.tolist()]
    occupants += [seating.slots.request[admission.slot] for admission in plan.admissions]
    running = [request for request in occupants if request is not None and request.status is RequestStatus.RUNNING]
    return list({id(request): request for request in running}.values())


def _fail_for_nan(seating: Seating, slot: int, step: CollectedStep) -> None:
    request = seating.slots.request[slot]
    assert request is not None
    error = StepFailedError(
        f"request {request.request_id}: the model's logits are NaN after "
        f"{int(seating.slots.num_tokens[slot])} tokens; check the weights, or try dtype=float32"
    )
    seating.forget_blocks(slot)
    step.ended.append((request, FinishReason.ERROR, error))


def _note_first_tokens(seating: Seating, rows: Int32, position: Int64, now: float) -> None:
    slots = seating.slots
    first = position == slots.num_prompt[rows]
    if first.any():
        for slot in rows[first].tolist():
            request = slots.request[slot]
            assert request is not None
            request.metrics.first_token_time = now


def _offer_full_blocks(seating: Seating, rows: Int32, position: Int64) -> None:
    """Offer blocks that decoding has filled. `position` is the new token's: all before it are in the cache."""
    if seating.prefix_cache is None:
        return
    full = position % seating.block_size == 0
    if full.any():
        for slot, num_computed in zip(rows[full].tolist(), position[full].tolist(), strict=True):
            block = num_computed // seating.block_size
            seating.offer_blocks(slot, block - 1, block)


def _keep_logprobs(
    seating: Seating, rows: Int32, counts: np.ndarray[tuple[int], np.dtype[np.bool_]], index: Int32, found: LogprobRows
) -> None:
    for line, row in enumerate(index.tolist()):
        if counts[row]:
            request = seating.slots.request[int(rows[row])]
            assert request is not None and request.params.logprobs is not None
            request.logprobs.append(_token_logprobs(found, line, request.params.logprobs))


def _keep_prompt_logprobs(seating: Seating, plan: StepPlan, output: StepOutput) -> None:
    for row, count in plan.prompt_logprob_rows:
        request = seating.slots.request[int(plan.row_slots[row])]
        found = output.prompt_logprobs.get(row)
        if request is None or found is None:
            continue
        have, start = len(request.prompt_logprobs), int(plan.row_starts[row])
        for line in range(max(0, have - start), len(found.token_ids)):
            if len(request.prompt_logprobs) < request.num_prompt_tokens - 1:
                request.prompt_logprobs.append(_token_logprobs(found, line, count))


def _token_logprobs(found: LogprobRows, line: int, count: int) -> TokenLogprobs:
    return TokenLogprobs(
        int(found.token_ids[line]),
        float(found.logprobs[line]),
        int(found.ranks[line]),
        found.top_token_ids[line, :count].tolist(),
        found.top_logprobs[line, :count].tolist(),
    )
