"""From events on the device to seconds on the host's clock. Knows events; not what is between them.

One event whose host time is known is the origin, and the device tells the time from there to any other. The two clocks
drift apart, and the device counts in float32 milliseconds, so the origin moves on about every second: every step
bounds the error from both sides, since it cannot have begun before it was submitted nor ended after it was seen done.
"""

import math

from jitney.device.streams import Event

ANCHOR_S = 1.0
"""Age at which the origin is replaced: float32 milliseconds are exact to a tenth of a microsecond up to there."""


class DeviceClock:
    """Host times of timed events."""

    def __init__(self, origin: Event, now: float) -> None:
        """`origin` was done at host time `now`, just now."""
        self._origin = origin
        self._origin_time = now
        self._least_lag = math.inf
        self._last_end = -math.inf

    def time_of(self, event: Event) -> float:
        """Host time of an event that is done."""
        return self._origin_time + event.seconds_since(self._origin)

    def span(self, start: Event, end: Event, submitted: float, seen: float, waited: bool) -> tuple[float, float]:
        """Host times of a step's start and end, and what they teach about the origin. Steps come in order.

        Args:
            start, end: the step's events, both done.
            submitted: host time before `start` was recorded.
            seen: host time after `end` was found done.
            waited: the host was waiting for it, so that it saw it at once.
        """
        self._learn(start, end, submitted, seen, waited)
        # a correction between two steps must not make them overlap
        begin = max(self.time_of(start), self._last_end)
        self._last_end = max(self.time_of(end), begin)
        return begin, self._last_end

    def _learn(self, start: Event, end: Event, submitted: float, seen: float, waited: bool) -> None:
        early = submitted - self.time_of(start)
        if early > 0:
            self._shift(early)
        lag = seen - self.time_of(end)
        if lag < 0:
            self._shift(lag)
            lag = 0.0
        if waited or lag == 0.0:
            self._least_lag = min(self._least_lag, lag)
        if end.seconds_since(self._origin) >= ANCHOR_S:
            self._anchor(end)

    def _shift(self, seconds: float) -> None:
        self._origin_time += seconds
        self._least_lag = max(0.0, self._least_lag - seconds)

    def _anchor(self, event: Event) -> None:
        # what even the promptest step of this second lacked is the clocks' drift, and not the host's slowness
        drift = self._least_lag if math.isfinite(self._least_lag) else 0.0
        self._origin_time = self.time_of(event) + drift
        self._origin, self._least_lag = event, math.inf
