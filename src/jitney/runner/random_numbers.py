"""Counter-based random numbers: a pure function of (seed, position). Holds no generator and no state.

A number does not depend on how many were drawn before it, nor by whom, so a seeded request gets the same tokens
whatever shares its batch, after a preemption and after a restart.

Method: SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014). The seed is
mixed once to find the stream's starting point (random_stream.py), so that neighbouring seeds do not give shifted
copies of one stream; number `position` of the stream is then mix64(start + (position + 1) * GAMMA).
"""

import torch

_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


def uniform(starts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in [0, 1), one for each row.

    Args:
        starts: [S] int64, `stream_start` of each row's seed.
        positions: [S] int64, position in its sequence of the token to be sampled.

    Returns:
        [S] float64 with 53 random bits.
    """
    bits = _mix64(starts + (positions + 1) * _signed(_GAMMA))
    return _shift_right(bits, 11).double() * 2.0**-53


def _mix64(x: torch.Tensor) -> torch.Tensor:
    # torch has no arithmetic on uint64; int64 wraps around and gives the same bits
    x = (x ^ _shift_right(x, 30)) * _signed(_MULTIPLIER_1)
    x = (x ^ _shift_right(x, 27)) * _signed(_MULTIPLIER_2)
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch's own copies the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x
