"""Top-k and top-p filtering on a GPU without a sort: bisection for the least logit that stays. Knows no slots.

float32 numbers order like integers, so 32 halvings find the border exactly; each counts the tokens above a candidate
and adds up their probabilities. Sums are float64 in a fixed order: a row's result does not depend on its batch.
"""

import torch
import triton
import triton.language as tl

_TILE = 8192


def drop_mask(logits: torch.Tensor, probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Which tokens top-k drops, and then top-p over what top-k has left.

    The same answer as `jitney.runner.top_k_top_p.drop_mask`, whose sums run in another order, to rounding in float64:
    at least one token is kept, and among equal logits at the border the lowest token ids. Whether a token of logit -inf
    counts as dropped may differ: it is never drawn.

    Args:
        logits: [N, V] float32, temperature and min-p applied.
        probs: [N, V] float32, softmax of `logits`.
        top_k: [N] int64 (0: off).
        top_p: [N] float64 (inf: off).

    Returns:
        [N, V] bool.
    """
    num_rows, vocab_size = logits.shape
    dropped = torch.empty((num_rows, vocab_size), dtype=torch.bool, device=logits.device)
    if num_rows > 0:
        tile = min(_TILE, triton.next_power_of_2(vocab_size))
        _drop_mask_kernel[(num_rows,)](
            dropped, _aligned(logits), _aligned(probs), top_k, top_p, vocab_size, tile, num_warps=16
        )
    return dropped


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """`x` without gaps, starting at a multiple of 16 bytes: for others Triton would compile the kernel once more.

    Rows from the middle of a tensor start elsewhere if the vocabulary is no multiple of 4.
    """
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


@triton.jit
def _keys(logits, ids, VOCAB_SIZE: tl.constexpr):
    """Integers in the order of the logits; the lowest of all behind the vocabulary's end."""
    values = tl.load(logits + ids, mask=ids < VOCAB_SIZE, other=0.0)
    values = tl.where(values == 0, 0.0, values)  # -0.0 equals 0.0
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(ids < VOCAB_SIZE, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x80000000)


@triton.jit
def _above(logits, probs, key, VOCAB_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Number and probability of the tokens whose key is greater, and the probability of one whose key is equal."""
    counts = tl.zeros([TILE], tl.int32)
    masses = tl.zeros([TILE], tl.float64)
    equal = tl.zeros([TILE], tl.float32)
    for start in range(0, VOCAB_SIZE, TILE):
        ids = start + tl.arange(0, TILE)
        keys = _keys(logits, ids, VOCAB_SIZE)
        weights = tl.load(probs + ids, mask=ids < VOCAB_SIZE, other=0.0)
        counts += (keys > key).to(tl.int32)
        masses += tl.where(keys > key, weights, 0.0).to(tl.float64)
        equal = tl.maximum(equal, tl.where(keys == key, weights, 0.0))
    return tl.sum(counts, 0), tl.sum(masses, 0), tl.max(equal, 0).to(tl.float64)


@triton.jit
def _border(logits, probs, most_tokens, least_mass, VOCAB_SIZE: tl.constexpr, TILE: tl.constexpr):
    """The least key above which there are fewer tokens than `most_tokens`, of less probability than `least_mass`."""
    low = tl.full([], -0x80000000, tl.int64)
    high = tl.full([], 0x7FFFFFFF, tl.int64)
    for _ in range(32):
        middle = (low + high) >> 1
        count, mass, _equal = _above(logits, probs, middle.to(tl.int32), VOCAB_SIZE, TILE)
        fits = (count < most_tokens) & (mass < least_mass)
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, tl.minimum(middle + 1, high))
    return high.to(tl.int32)


@triton.jit
def _drop_mask_kernel(dropped, logits, probs, all_top_k, all_top_p, VOCAB_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Grid (N,)"""
    row = tl.program_id(0).to(tl.int64)
    logits += row * VOCAB_SIZE
    probs += row * VOCAB_SIZE
    top_k = tl.load(all_top_k + row)
    top_p = tl.load(all_top_p + row)
    most_tokens = tl.where(top_k > 0, tl.minimum(top_k, VOCAB_SIZE), VOCAB_SIZE)
    mass = tl.full([], 1.0, tl.float64)
    if top_k > 0:
        key = _border(logits, probs, most_tokens, float("inf"), VOCAB_SIZE, TILE)
        count, mass_above, equal = _above(logits, probs, key, VOCAB_SIZE, TILE)
        mass = mass_above + (most_tokens - count).to(tl.float64) * equal
    least_mass = top_p * mass
    key = _border(logits, probs, most_tokens, least_mass, VOCAB_SIZE, TILE)
    count, mass_above, equal = _above(logits, probs, key, VOCAB_SIZE, TILE)
    # among equals at the border, the j-th stays while the tokens before it are few and light enough
    places = (most_tokens - count).to(tl.float64)
    if equal > 0:
        places = tl.minimum(places, tl.ceil((least_mass - mass_above) / equal))
    places = tl.maximum(places, 1.0)
    seen = tl.full([], 0, tl.int32)
    for start in range(0, VOCAB_SIZE, TILE):
        ids = start + tl.arange(0, TILE)
        keys = _keys(logits, ids, VOCAB_SIZE)
        is_equal = ((keys == key) & (ids < VOCAB_SIZE)).to(tl.int32)
        rank = seen + tl.cumsum(is_equal, 0)
        is_dropped = (keys < key) | ((keys == key) & (rank.to(tl.float64) > places))
        tl.store(dropped + row * VOCAB_SIZE + ids, is_dropped, mask=ids < VOCAB_SIZE)
        seen += tl.sum(is_equal, 0)
