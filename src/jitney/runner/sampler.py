"""From logits to one token per row, in one batched pass over mixed rows. Knows slots and positions, not requests.

Order of the rules, that of vLLM: logprobs of the raw distribution, allowed ids and bias, min_tokens, penalties,
temperature, min-p, top-k, top-p. A row's token depends on its own logits, slot state and position alone: every
operation works along a row, and no sum is split according to the batch.
"""

from dataclasses import dataclass

import numpy as np
import torch

from jitney.device.transfer import to_device
from jitney.runner.logprobs import LogprobTensors, logprobs_of
from jitney.runner.random_numbers import uniform
from jitney.runner.sampling_ops import valid_rows
from jitney.runner.sampling_state import Feature, SamplingState
from jitney.types import Int32, Int64


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The S rows that sample, on the device and (the same numbers) on the host."""

    slots: torch.Tensor
    """[S] int64"""
    positions: torch.Tensor
    """[S] int64: where the sampled token will stand in its sequence."""
    host_slots: Int32
    host_positions: Int32


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Result of one pass, on the device."""

    token_ids: torch.Tensor
    """[S] int64, always inside the vocabulary."""
    is_valid: torch.Tensor
    """[S] bool: False where the logits held NaN or +inf, or where the rules left no token to choose."""
    logprobs: LogprobTensors | None
    logprob_rows: Int32 | None
    """[L] index into token_ids of the rows of `logprobs` (numpy: known to the host beforehand)."""


def sample(logits: torch.Tensor, rows: SampleRows, state: SamplingState) -> SampledTokens:
    """Choose a token for each row.

    Args:
        logits: [S, V] float32, S >= 1; overwritten where rules or penalties apply.
        rows: which slot and position each row belongs to.
        state: the slots' sampling state; its penalties learn of the sampled tokens.
    """
    features = state.features[rows.host_slots]
    logprob_rows = np.flatnonzero(features & Feature.LOGPROBS)
    raw_logits = logits[_selection(logprob_rows, logits)].clone() if len(logprob_rows) else None

    adjusted = np.flatnonzero(features & (Feature.RULES | Feature.PENALTIES))
    before = valid_rows(logits) if len(adjusted) else None  # rules may hide what is wrong
    for i in adjusted:
        state.adjust(int(rows.host_slots[i]), int(rows.host_positions[i]), logits[i])
    token_ids, is_valid = _choose(logits, rows, state, features)
    if before is not None:
        is_valid &= before
    for i in np.flatnonzero(features & Feature.PENALTIES):
        state.append_token(int(rows.host_slots[i]), token_ids[i : i + 1])

    if raw_logits is None:
        return SampledTokens(token_ids, is_valid, None, None)
    num_top = int(state.num_logprobs[rows.host_slots[logprob_rows]].max())
    logprobs = logprobs_of(raw_logits, token_ids[_selection(logprob_rows, logits)], num_top)
    return SampledTokens(token_ids, is_valid, logprobs, logprob_rows.astype(np.int32))


def _choose(
    logits: torch.Tensor, rows: SampleRows, state: SamplingState, features: Int32
) -> tuple[torch.Tensor, torch.Tensor]:
    """[S] int64: the most likely token of greedy rows, a drawn one of the others; and [S] bool: the row is valid."""
    num_rows, vocab_size = logits.shape
    random = np.flatnonzero(features & Feature.RANDOM)
    if len(random) == num_rows:
        token_ids, is_valid = torch.empty(num_rows, dtype=torch.int64, device=logits.device), valid_rows(logits)
    else:
        token_ids, is_valid = state.ops.most_likely(logits)
    rows_at_once = max(1, state.ops.max_logits // vocab_size)
    for start in range(0, len(random), rows_at_once):
        chunk = random[start : start + rows_at_once]
        index = _selection(chunk, logits)
        slots = rows.slots[index]
        probs = _probabilities(logits[index], slots, rows.host_slots[chunk], state)
        token_ids[index] = _draw(probs, uniform(state.stream_starts[slots], rows.positions[index]))
    return token_ids, is_valid


def _probabilities(logits: torch.Tensor, slots: torch.Tensor, host_slots: Int32, state: SamplingState) -> torch.Tensor:
    """[N, V] float32: what to draw from, in proportion (filtered tokens are 0, the rest not scaled up to sum 1)."""
    features = state.features[host_slots]
    # with the maximum at 0 no temperature, however small, can overflow, and min-p is a constant threshold
    logits = (logits - logits.amax(-1, keepdim=True)).div_(state.temperature[slots, None])
    if np.any(features & Feature.MIN_P):
        logits.masked_fill_(logits < state.log_min_p[slots, None], -torch.inf)
    probs = logits.softmax(-1)
    filtered = np.flatnonzero(features & Feature.TOP_K_TOP_P)
    if len(filtered):
        index = _selection(filtered, logits)
        own_slots, own_probs = slots[index], probs[index]
        dropped = state.ops.drop_mask(
            logits[index],
            own_probs,
            state.top_k[own_slots],
            state.top_p[own_slots],
            state.top_k_on_host[host_slots[filtered]],
        )
        probs[index] = own_probs.masked_fill_(dropped, 0.0)
    return probs


def _draw(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution, in vocabulary order: [N, V] float32 and [N] float64 -> [N] int64.

    The first token whose cumulative weight exceeds uniform * total is taken, so one of weight 0 never is. Rows with
    NaN get some token inside the vocabulary.
    """
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    target = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=probs.shape[-1] - 1)


def _selection(index: Int64, like: torch.Tensor) -> slice | torch.Tensor:
    """Rows `index` (ascending) as something to index tensors with: a slice if they are a run, which copies nothing."""
    if index[-1] - index[0] + 1 == len(index):
        return slice(int(index[0]), int(index[-1]) + 1)
    return to_device(index, like.device)
