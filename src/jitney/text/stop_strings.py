"""Stop strings in a growing text, wherever the text is cut. Knows characters only, no tokens.

Each stop string is matched by the algorithm of Knuth, Morris and Pratt (1977), one step a character. Its state is the
length of the longest prefix of the stop string that the text ends with, which is also exactly how much text must be
held back for it: more cannot be part of a match, less could be.
"""

from collections.abc import Sequence


class StopStrings:
    """Finds the stop string that is completed first; of several completed by the same character, the longest.

    This choice depends on the text alone, so the same text gives the same end however it was cut.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """
        Args:
            stops: non-empty strings; none at all lets all text through.
            include: keep the stop string at the end of the emitted text.
        """
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._fallbacks = [_fallback_table(stop) for stop in self._stops]
        self._include = include
        self._states = [0] * len(self._stops)
        self._held = ""

    def __bool__(self) -> bool:
        return bool(self._stops)

    def push(self, text: str, counts: bool = True) -> tuple[str, str | None]:
        """Take more text.

        Args:
            text: what follows the text so far.
            counts: whether a stop string completed in this text ends it (False: before `min_tokens`).

        Returns:
            The text to emit now, and the stop string that ended it, if one did (nothing may be pushed after that).
        """
        if not self._stops:
            return text, None
        found = _advance(self._stops, self._fallbacks, self._states, text, counts)
        available = self._held + text
        if found is not None:
            stop, end = found
            end += len(self._held)
            self._held = ""
            return available[: end if self._include else end - len(stop)], stop
        num_held = max(self._states)
        emitted = available[: len(available) - num_held]
        self._held = available[len(emitted) :]
        return emitted, None

    def matches(self, text: str) -> bool:
        """Whether `text` would complete a stop string. Changes nothing."""
        return _advance(self._stops, self._fallbacks, list(self._states), text, counts=True) is not None

    def finish(self) -> str:
        """The text ended without a stop string: what was held back."""
        held, self._held = self._held, ""
        return held


def _advance(
    stops: Sequence[str], fallbacks: Sequence[list[int]], states: list[int], text: str, counts: bool
) -> tuple[str, int] | None:
    """Move `states` (one for each stop string) over `text`; (stop string, characters up to its end) if one counts."""
    for position, character in enumerate(text):
        for i, stop in enumerate(stops):
            state = states[i]
            while state and stop[state] != character:
                state = fallbacks[i][state]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                if counts:
                    return stop, position + 1
                state = fallbacks[i][state]
            states[i] = state
    return None


def _fallback_table(stop: str) -> list[int]:
    """[n] for n = 0 .. len(stop): length of the longest proper prefix of stop[:n] that is also its suffix."""
    table = [0, 0]
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = table[length]
        if stop[length] == character:
            length += 1
        table.append(length)
    return table
