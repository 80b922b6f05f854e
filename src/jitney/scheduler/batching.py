"""Who may enter when: continuous batching and the baselines it is compared with, as answers to one question.

The baselines are what people run without a serving engine. `static` closes a batch until its last member ends;
`dynamic` (as in Triton's dynamic batcher) first collects requests for a window; `sequential` is a `generate` call each.
"""

from typing import Protocol

from jitney.config import EngineConfig


class Batching(Protocol):
    """A batching policy."""

    holds_seats: bool
    """Whether ended requests keep their seat, computed in vain, until the whole batch has ended."""

    def free_seats(self, num_running: int, num_waiting: int, head_arrival: float, now: float) -> int:
        """How many waiting requests may enter now. `head_arrival`: of the next in line."""

    def wake_time(self, head_arrival: float) -> float | None:
        """When to ask again though nothing runs and nothing new arrives; None: no need."""


class Continuous:
    """Decided anew after every forward pass (Yu et al., *Orca*, OSDI 2022)."""

    holds_seats = False

    def __init__(self, num_seats: int) -> None:
        self._num_seats = num_seats

    def free_seats(self, num_running: int, num_waiting: int, head_arrival: float, now: float) -> int:
        return self._num_seats - num_running

    def wake_time(self, head_arrival: float) -> float | None:
        return None


class Static:
    """A batch of whoever waits (after `window_s` seconds or with a full house), closed until its last member ends."""

    holds_seats = True

    def __init__(self, num_seats: int, window_s: float = 0.0) -> None:
        self._num_seats = num_seats
        self._window_s = window_s

    def free_seats(self, num_running: int, num_waiting: int, head_arrival: float, now: float) -> int:
        if num_running or (num_waiting < self._num_seats and now < head_arrival + self._window_s):
            return 0
        return self._num_seats

    def wake_time(self, head_arrival: float) -> float | None:
        return head_arrival + self._window_s


def make_batching(config: EngineConfig) -> Batching:
    """The policy named by `config.batching_policy`."""
    match config.batching_policy:
        case "continuous":
            return Continuous(config.max_num_seqs)
        case "sequential":
            return Continuous(1)
        case "static":
            return Static(config.max_num_seqs)
        case "dynamic":
            return Static(config.max_num_seqs, config.dynamic_batching_window_s)
