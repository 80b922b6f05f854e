"""Token ids to text, piece by piece: what has been emitted is never taken back. Knows nothing of stop strings.

The invariant, for every way to cut the ids into pushes: the deltas, `finish()` included, add up to exactly
`tokenizer.decode(all ids)`. How it is kept depends on what the tokenizer's decoder does:

    byte-level (GPT-2, Llama 3, Qwen ...)   decode = UTF-8 of the tokens' concatenated bytes; an incremental UTF-8
                                            decoder does the same byte by byte. One table look-up a token.
    local (SentencePiece style, WordPiece)  a token's text depends on nothing but whether it is the first one, except
                                            that neighbouring <0xNN> byte tokens are decoded as one run (and a
                                            malformed run becomes all U+FFFD). Text is emitted at the end of a run.
    anything else                           nothing is promised about prefixes, so the text comes at the end.

Each token is decoded once, or twice inside a byte run: the cost per token does not grow with the output.
"""

import codecs
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import tokenizers


class Detokenizer(Protocol):
    """The text of one sequence of tokens, as it grows."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is now certain, since the last call. Ids the vocabulary does not have stand for no text."""

    def pending(self) -> str:
        """Whole characters held back only because a later token could still change them: what `finish` would add if
        the sequence ended here. Empty if nothing but an incomplete character is held back."""

    def finish(self) -> str:
        """The rest of the text. No `push` may follow."""


class DetokenizerFactory:
    """Makes the detokenisers of one tokenizer; looks at its decoder once."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._bytes_of_token: dict[int, bytes] = {}

    def new(self, skip_special_tokens: bool) -> Detokenizer:
        dropped = self._special_ids if skip_special_tokens else frozenset[int]()
        if self._kind == "byte_level":
            return _ByteLevelDetokenizer(self, dropped)
        if self._kind == "local" and self._sentinel is not None:
            return _LocalDetokenizer(self._backend, dropped, skip_special_tokens, self._sentinel)
        return _WholeTextDetokenizer(self._backend, skip_special_tokens)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one token of a byte-level vocabulary."""
        known = self._bytes_of_token.get(token_id)
        if known is None:
            known = self._bytes_of_token[token_id] = _piece_bytes(self._backend.id_to_token(token_id) or "")
        return known

    @cached_property
    def _kind(self) -> str:
        return _decoder_kind(_decoder_steps(self._backend))

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def _sentinel(self) -> int | None:
        """A plain token: put before others, it makes the decoder treat them as not the first."""
        added = self._backend.get_added_tokens_decoder()
        for token_id in range(self._backend.get_vocab_size()):
            piece = self._backend.id_to_token(token_id) or ""
            if piece.isascii() and piece.isalpha() and token_id not in added and self._backend.decode([token_id]):
                return token_id
        return None


class _ByteLevelDetokenizer:
    def __init__(self, factory: DetokenizerFactory, dropped: frozenset[int]) -> None:
        self._bytes_of = factory.bytes_of
        self._dropped = dropped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._utf8.decode(b"".join([self._bytes_of(t) for t in token_ids if t not in self._dropped]))

    def pending(self) -> str:
        return ""

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _LocalDetokenizer:
    """Decodes from one safe cut to the next; the sentinel stands for everything before the cut."""

    def __init__(
        self, backend: tokenizers.Tokenizer, dropped: frozenset[int], skip_special_tokens: bool, sentinel: int
    ) -> None:
        self._backend = backend
        self._dropped = dropped
        self._skip_special_tokens = skip_special_tokens
        self._sentinel = sentinel
        self._sentinel_length = len(backend.decode([sentinel]))
        self._held: list[int] = []
        self._has_started = False

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def _push_one(self, token_id: int) -> str:
        piece = self._backend.id_to_token(token_id)
        if piece is None or token_id in self._dropped:
            return ""  # decode() leaves these out before it looks for byte runs, so they end none
        self._held.append(token_id)
        return "" if _may_be_byte_token(piece) else self._release()

    def _release(self) -> str:
        text = self.pending()
        # While there is no text yet the decoder may still owe us something that depends on being first (a leading
        # space to strip), so the tokens stay together.
        if text or self._has_started:
            self._has_started = True
            self._held.clear()
        return text

    def pending(self) -> str:
        if not self._held:
            return ""
        if not self._has_started:
            return self._backend.decode(self._held, skip_special_tokens=self._skip_special_tokens)
        ids = [self._sentinel, *self._held]
        return self._backend.decode(ids, skip_special_tokens=self._skip_special_tokens)[self._sentinel_length :]

    def finish(self) -> str:
        text = self.pending()
        self._held.clear()
        return text


class _WholeTextDetokenizer:
    """For decoders in which a later token may change the text of an earlier one."""

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._skip_special_tokens = skip_special_tokens
        self._ids: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        self._ids.extend(token_ids)
        return ""

    def pending(self) -> str:
        return self._backend.decode(self._ids, skip_special_tokens=self._skip_special_tokens)

    def finish(self) -> str:
        text = self.pending()
        self._ids.clear()
        return text


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[Mapping[str, Any]] | None:
    """The decoder's parts in order; None if it cannot be inspected (one written in Python)."""
    decoder: Any = backend.decoder
    if decoder is None:
        return []
    try:
        spec = json.loads(decoder.__getstate__())
    except Exception:  # the binding raises a bare Exception for custom decoders
        return None
    return list(spec["decoders"]) if spec["type"] == "Sequence" else [spec]


def _decoder_kind(steps: list[Mapping[str, Any]] | None) -> str:
    if steps is None:
        return "whole"
    names = [step["type"] for step in steps]
    cut = names.index("Fuse") if "Fuse" in names else len(names)
    token_wise, after = names[:cut], steps[cut + 1 :]
    if token_wise == ["ByteLevel"] and not after:
        return "byte_level"
    strips_only_the_front = all(step["type"] == "Strip" and step["stop"] == 0 for step in after)
    if strips_only_the_front and set(token_wise) <= {"Replace", "ByteFallback", "Metaspace", "WordPiece", "Strip"}:
        return "local"
    return "whole"


def _may_be_byte_token(piece: str) -> bool:
    # A superset of what the decoder takes for a byte: a false alarm only delays text by a token.
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def byte_alphabet() -> dict[int, str]:
    """GPT-2's spelling of each byte as a printable character (Radford et al., 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = {character: byte for byte, character in byte_alphabet().items()}


def _piece_bytes(piece: str) -> bytes:
    """Added tokens are spelled as plain text; a piece with any character outside the alphabet is one of those."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8")
