"""Top-k and top-p (nucleus) filtering without sorting the vocabulary, where that can be avoided. Pure tensor functions.

The most likely candidates are nearly always enough to find where the nucleus ends (Holtzman et al., "The Curious Case
of Neural Text Degeneration", 2020); only rows whose nucleus reaches beyond them are sorted. Both ways give the same
answer, bit for bit, because both add up the same numbers in the same order.
"""

import torch
import torch.nn.functional as F

MAX_CANDIDATES = 1024


def keep_mask(
    logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> torch.Tensor:
    """Which tokens top-k, and then top-p over what top-k has left, let through.

    At least one token is kept. Among equal logits at the border the lowest token ids are kept, so top_k=1 is greedy.

    Args:
        logits: [N, V] float32, temperature and min-p applied.
        probs: [N, V] float32, softmax of `logits`.
        top_k: [N] int64 (0: off).
        top_p: [N] float64 (inf: off).
        num_candidates: how many of the most likely tokens to look at before sorting; at least max(top_k) saves time.

    Returns:
        [N, V] bool.
    """
    num_candidates = min(num_candidates, logits.shape[-1])
    num_kept, threshold, settled = _borders(logits, probs, top_k, top_p, num_candidates)
    if not settled.all():
        rest = (~settled).nonzero().squeeze(-1)
        num_kept[rest], threshold[rest], _ = _borders(
            logits[rest], probs[rest], top_k[rest], top_p[rest], logits.shape[-1]
        )
    return _keep_best(logits, threshold, num_kept)


def _borders(
    logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each row: how many tokens stay, the least logit among them, and whether the candidates sufficed to tell."""
    if num_candidates < logits.shape[-1]:
        values, ids = logits.topk(num_candidates, dim=-1)
    else:
        values, ids = logits.sort(dim=-1, descending=True)
    cumulative = probs.gather(-1, ids).cumsum(-1, dtype=torch.float64)
    rank = torch.arange(num_candidates, device=logits.device)
    in_top_k = (rank < top_k[:, None]) | (top_k == 0)[:, None]
    mass_of_k = cumulative.gather(-1, (top_k - 1).clamp(0, num_candidates - 1)[:, None]).squeeze(-1)
    mass = torch.where(top_k > 0, mass_of_k, 1.0)
    mass_before = F.pad(cumulative[:, :-1], (1, 0))
    num_kept = (in_top_k & (mass_before < (top_p * mass)[:, None])).sum(-1).clamp(min=1)
    threshold = values.gather(-1, num_kept[:, None] - 1).squeeze(-1)
    if num_candidates == logits.shape[-1]:
        settled = torch.ones_like(top_k, dtype=torch.bool)
    else:
        settled = torch.where(top_k > 0, top_k <= num_candidates, cumulative[:, -1] >= top_p)
    return num_kept, threshold, settled


def _keep_best(logits: torch.Tensor, threshold: torch.Tensor, num_kept: torch.Tensor) -> torch.Tensor:
    keep = logits >= threshold[:, None]
    tied = (keep.sum(-1) > num_kept).nonzero().squeeze(-1)
    if len(tied):
        above = logits[tied] > threshold[tied, None]
        at_border = logits[tied] == threshold[tied, None]
        places = num_kept[tied] - above.sum(-1)
        keep[tied] = above | (at_border & (at_border.cumsum(-1) <= places[:, None]))
    return keep
