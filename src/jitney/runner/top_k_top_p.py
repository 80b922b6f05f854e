"""Top-k and top-p (nucleus) filtering without sorting the vocabulary, where that can be avoided. Pure tensor functions.

The most likely candidates are nearly always enough to find where the nucleus ends (Holtzman et al., "The Curious Case
of Neural Text Degeneration", 2020); only rows whose nucleus reaches beyond them are sorted. Both ways give the same
answer, bit for bit, because both add up the same numbers in the same order.

Which rows those are, only the tensors know: `drop_mask` looks, which is free on a CPU. On a GPU the host would have to
wait for the device, so `drop_mask_unseen` is told how many candidates are enough, and works without a look (a GPU with
Triton has a kernel instead: kernels/triton/top_k_top_p.py).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

MAX_CANDIDATES = 1024


def drop_mask(
    logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> torch.Tensor:
    """Which tokens are dropped by top-k, and then by top-p over what top-k has left.

    At least one token is kept. Among equal logits at the border the lowest token ids are kept, so top_k=1 is greedy.

    Args:
        logits: [N, V] float32, temperature and min-p applied.
        probs: [N, V] float32, softmax of `logits`.
        top_k: [N] int64 (0: off).
        top_p: [N] float64 (inf: off).
        num_candidates: how many of the most likely tokens to look at before sorting; more than max(top_k) saves time.

    Returns:
        [N, V] bool.
    """
    values, ids = logits.topk(min(num_candidates, logits.shape[-1]), dim=-1)
    borders = _borders(values, probs.gather(-1, ids), top_k, top_p, logits.shape[-1])
    for row in (~borders.settled).nonzero().squeeze(-1):
        one = slice(int(row), int(row) + 1)
        borders.put(one, _borders_by_sorting(logits[row], probs[row], top_k[one], top_p[one]))
    dropped = logits < borders.threshold[:, None]
    for row in borders.has_surplus.nonzero().squeeze(-1):
        at_border = logits[row] == borders.threshold[row]
        places = borders.num_kept[row] - (logits[row] > borders.threshold[row]).sum()
        dropped[row] |= at_border & (at_border.cumsum(-1) > places)
    return dropped


def drop_mask_unseen(
    logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> torch.Tensor:
    """`drop_mask` for a host that may not look at the tensors.

    `num_candidates` must be enough for every row: more than its top_k, or V if a row has no top_k.
    """
    values, ids = logits.topk(min(num_candidates, logits.shape[-1]), dim=-1)
    borders = _borders(values, probs.gather(-1, ids), top_k, top_p, logits.shape[-1])
    threshold = borders.threshold[:, None]
    at_border = (logits == threshold) & borders.has_surplus[:, None]
    places = borders.num_kept - (logits > threshold).sum(-1)
    return (logits < threshold) | (at_border & (at_border.cumsum(-1) > places[:, None]))


@dataclass(frozen=True, slots=True)
class _Borders:
    """Where each of N rows ends."""

    num_kept: torch.Tensor
    """[N] int64"""
    threshold: torch.Tensor
    """[N] float32: the least logit among the kept."""
    has_surplus: torch.Tensor
    """[N] bool: more tokens have that very logit than may stay."""
    settled: torch.Tensor
    """[N] bool: the candidates sufficed to tell."""

    def put(self, rows: slice, found: "_Borders") -> None:
        self.num_kept[rows] = found.num_kept
        self.threshold[rows] = found.threshold
        self.has_surplus[rows] = found.has_surplus


def _borders_by_sorting(
    logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> _Borders:
    """The borders of one row ([V], [V], [1], [1]) that the first candidates could not settle."""
    vocab_size = len(logits)
    if top_k == 0:
        # all tokens less likely than (1 - top_p) / V together miss the nucleus; half of it leaves room for rounding
        likely = (probs >= (1.0 - top_p) / (2 * vocab_size)).nonzero().squeeze(-1)
        values, order = logits[likely].sort(descending=True)
        borders = _borders(values[None], probs[likely[order]][None], top_k, top_p, vocab_size)
        if borders.settled:
            return borders
    values, order = logits.sort(descending=True)
    return _borders(values[None], probs[order][None], top_k, top_p, vocab_size)


def _borders(
    values: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, vocab_size: int
) -> _Borders:
    """Find the borders among the C most likely tokens of each row: their logits, falling, and probabilities [N, C]."""
    num_candidates = values.shape[-1]
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    rank = torch.arange(num_candidates, device=values.device)
    in_top_k = (rank < top_k[:, None]) | (top_k == 0)[:, None]
    mass_of_k = cumulative.gather(-1, (top_k - 1).clamp(0, num_candidates - 1)[:, None]).squeeze(-1)
    mass = torch.where(top_k > 0, mass_of_k, 1.0)
    mass_before = F.pad(cumulative[:, :-1], (1, 0))
    num_kept = (in_top_k & (mass_before < (top_p * mass)[:, None])).sum(-1).clamp(min=1)
    threshold = values.gather(-1, num_kept[:, None] - 1).squeeze(-1)
    next_value = values.gather(-1, num_kept[:, None].clamp(max=num_candidates - 1)).squeeze(-1)
    is_whole = num_candidates == vocab_size
    return _Borders(
        num_kept=num_kept,
        threshold=threshold,
        has_surplus=(num_kept < num_candidates) & (next_value == threshold) & (threshold > -torch.inf),
        settled=(torch.where(top_k > 0, top_k, num_kept) < num_candidates) | is_whole,
    )
