import torch
from hypothesis import given
from hypothesis import strategies as st

from jitney.runner.random_numbers import uniform
from jitney.runner.random_stream import stream_start

MASK = 2**64 - 1


def splitmix64_outputs(state: int, count: int) -> list[int]:
    """The reference implementation of SplitMix64 (Vigna, https://prng.di.unimi.it/splitmix64.c), in plain integers."""
    outputs = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


def uniforms(seed: int, positions: list[int]) -> list[float]:
    starts = torch.full((len(positions),), stream_start(seed), dtype=torch.int64)
    return uniform(starts, torch.tensor(positions)).tolist()


def test_the_reference_gives_the_published_outputs():
    # first outputs for state 1234567, as listed by Rosetta Code
    assert splitmix64_outputs(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(0, 2**63 - 1))
def test_numbers_are_splitmix64_from_the_seeds_own_start(seed):
    expected = [bits >> 11 for bits in splitmix64_outputs(stream_start(seed) & MASK, 5)]
    assert uniforms(seed, [0, 1, 2, 3, 4]) == [bits * 2.0**-53 for bits in expected]


def test_a_number_depends_on_seed_and_position_alone():
    assert uniforms(7, [5, 90, 3]) == [uniforms(7, [p])[0] for p in (5, 90, 3)]


def test_neighbouring_seeds_and_positions_are_uncorrelated_and_uniform():
    grid = torch.tensor([uniforms(seed, list(range(200))) for seed in range(200)], dtype=torch.float64)
    assert grid.min() >= 0.0 and grid.max() < 1.0
    assert len(grid.unique()) == grid.numel()
    counts = torch.histc(grid, bins=50, min=0.0, max=1.0)
    expected = grid.numel() / 50
    assert ((counts - expected) ** 2 / expected).sum() < 94  # chi-square, 49 degrees of freedom, p = 1e-4
    for neighbours in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid[1:, :-1], grid[:-1, 1:])):
        pair = torch.stack([side.flatten() for side in neighbours])
        assert abs(torch.corrcoef(pair)[0, 1]) < 4 / pair.shape[1] ** 0.5
