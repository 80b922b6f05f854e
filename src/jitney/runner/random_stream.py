"""Where a seed's stream of counter-based random numbers starts (see random_numbers.py for the method)."""

_MASK = 2**64 - 1


def stream_start(seed: int) -> int:
    """Starting point of a seed's stream, as a signed 64-bit integer. `seed` is taken modulo 2**64."""
    x = seed & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    x ^= x >> 31
    return x - 2**64 if x >= 2**63 else x
