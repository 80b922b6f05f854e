"""The most likely token of each row in one pass over the logits, in Triton. Knows no slots and no sampling rules.

The vocabulary is cut into splits whose size is fixed, each program finds the largest of one, and a second kernel takes
the largest of those. No sum is involved: the result is exact.
"""

import torch
import triton
import triton.language as tl

_SPLIT = 4096
"""Logits of one program: eight loads of 16 bytes in flight for each of 128 threads."""


def most_likely(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens, and which rows can be trusted.

    Args:
        logits: [S, V], float32 or half precision; rows may be any stride apart.

    Returns:
        ([S] int64, [S] bool). The lowest id among equals, as torch.argmax has it on a CPU. False where the largest
        logit is not finite: the row holds NaN or +inf, or nothing but -inf; its token is some id of the vocabulary.
    """
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_valid = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows == 0:
        return token_ids, is_valid
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    num_splits = triton.cdiv(vocab_size, _SPLIT)
    peaks = torch.empty((num_rows, num_splits), dtype=torch.float32, device=logits.device)
    places = torch.empty((num_rows, num_splits), dtype=torch.int32, device=logits.device)
    _split_kernel[(num_rows, num_splits)](peaks, places, logits, logits.stride(0), vocab_size, _SPLIT, num_warps=4)
    _merge_kernel[(num_rows,)](
        token_ids, is_valid, peaks, places, num_splits, triton.next_power_of_2(num_splits), num_warps=1
    )
    return token_ids, is_valid


@triton.jit
def _split_kernel(peaks, places, logits, row_stride, VOCAB_SIZE: tl.constexpr, SPLIT: tl.constexpr):
    """Grid (S, splits): the largest logit of one split and its id."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    ids = split * SPLIT + tl.arange(0, SPLIT)
    values = tl.load(logits + row * row_stride + ids, mask=ids < VOCAB_SIZE, other=float("-inf")).to(tl.float32)
    values = tl.where(values != values, float("inf"), values)  # as bad as +inf, and ordered
    peak, place = tl.max(values, 0, return_indices=True)  # the first among equals
    tl.store(peaks + row * tl.num_programs(1) + split, peak)
    tl.store(places + row * tl.num_programs(1) + split, split * SPLIT + place)


@triton.jit
def _merge_kernel(token_ids, is_valid, peaks, places, NUM_SPLITS: tl.constexpr, NUM_SPLITS_PAD: tl.constexpr):
    """Grid (S,)"""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, NUM_SPLITS_PAD)
    found = tl.load(peaks + row * NUM_SPLITS + splits, mask=splits < NUM_SPLITS, other=float("-inf"))
    peak, first = tl.max(found, 0, return_indices=True)
    tl.store(token_ids + row, tl.load(places + row * NUM_SPLITS + first).to(tl.int64))
    tl.store(is_valid + row, tl.abs(peak) < float("inf"))
