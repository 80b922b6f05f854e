"""One request's text: token ids in, text without broken characters and without stop strings out.

Puts the detokeniser and the stop strings together. Does not know why a request ends otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jitney.sampling_params import SamplingParams
from jitney.text.detokenizer import Detokenizer
from jitney.text.stop_strings import StopStrings
from jitney.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What a push brought."""

    text: str
    """To be appended to what was emitted before."""
    matched_stop: str | None
    """The stop string that ended the text, if one did."""
    num_tokens_used: int
    """How many of the pushed tokens belong to the output: all, or those up to the one that completed the stop."""


class TextStream:
    """The growing text of one request. The result does not depend on how the tokens are cut into pushes.

    A stop *token* is not this class's business: leave it out of what is pushed if its text is not wanted (special
    tokens have none with `skip_special_tokens`).
    """

    def __init__(self, detokenizer: Detokenizer, stop_strings: StopStrings, min_tokens: int = 0) -> None:
        """
        Args:
            detokenizer: a fresh one.
            stop_strings: a fresh one.
            min_tokens: stop strings completed by the text of the first `min_tokens` tokens do not count.
        """
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._parts: list[str] = []
        self._matched_stop: str | None = None

    @classmethod
    def for_request(cls, tokenizer: Tokenizer, params: SamplingParams) -> "TextStream":
        return cls(
            tokenizer.new_stream(params.skip_special_tokens),
            StopStrings(params.stop_strings, params.include_stop_str_in_output),
            params.min_tokens,
        )

    @property
    def text(self) -> str:
        """All text emitted so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def matched_stop(self) -> str | None:
        return self._matched_stop

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Take the next tokens of the output. After a match further tokens are ignored (0 used)."""
        if self._matched_stop is not None:
            return TextDelta("", self._matched_stop, 0)
        if not self._stop_strings:
            self._num_tokens += len(token_ids)
            return self._emit(self._detokenizer.push(token_ids), len(token_ids))
        emitted = ""
        for index, token_id in enumerate(token_ids):
            emitted += self._push_one(token_id)
            if self._matched_stop is not None:
                return self._emit(emitted, index + 1)
        return self._emit(emitted, len(token_ids))

    def finish(self) -> TextDelta:
        """The output ended: the text that was still held back. Harmless when called again."""
        if self._matched_stop is not None:
            return TextDelta("", self._matched_stop, 0)
        emitted, self._matched_stop = self._stop_strings.push(self._detokenizer.finish(), self._stops_count)
        return self._emit(emitted + self._stop_strings.finish(), 0)

    @property
    def _stops_count(self) -> bool:
        return self._num_tokens > self._min_tokens

    def _push_one(self, token_id: int) -> str:
        self._num_tokens += 1
        text = self._detokenizer.push((token_id,))
        pending = self._detokenizer.pending() if self._stops_count else ""
        if pending and "\ufffd" not in pending and self._stop_strings.matches(text + pending):
            # Text held back only because a later token could still change it (a byte run such as a newline's
            # <0x0A>). The match ends the output here, so no later token will.
            text += self._detokenizer.finish()
        emitted, self._matched_stop = self._stop_strings.push(text, self._stops_count)
        return emitted

    def _emit(self, text: str, num_tokens_used: int) -> TextDelta:
        if text:
            self._parts.append(text)
        return TextDelta(text, self._matched_stop, num_tokens_used)
