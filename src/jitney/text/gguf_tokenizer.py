"""Tokenizers rebuilt from the metadata of GGUF files, behaving as llama.cpp does with the same file.

Two kinds: "gpt2" (byte-level BPE with the file's merges) and "llama" (SentencePiece BPE: merges recovered from the
pieces' scores, bytes for what has no piece; Gemma's variant of it included). Knows no model weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from jitney.errors import ModelLoadError
from jitney.models.gguf_file import GGUFFile, read_gguf
from jitney.text.chat_template import ChatTemplate
from jitney.text.gguf_pre_tokenizers import ADDS_BOS, IGNORES_MERGES, SPLIT_PATTERNS
from jitney.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Values of `tokenizer.ggml.token_type` (also 5 = unused, 6 = byte)."""


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """See `Tokenizer.from_gguf`."""
    metadata = _Metadata.of(read_gguf(path))
    if metadata.model not in ("gpt2", "llama"):
        raise ModelLoadError(
            f'the GGUF file has a tokenizer of kind {metadata.model!r} (tokenizer.ggml.model); only "gpt2" '
            '(byte-level BPE) and "llama" (SentencePiece BPE) can be rebuilt: use the Hugging Face folder of the model'
        )
    try:
        backend = _build_backend(metadata)
    except ModelLoadError:
        raise
    except Exception as error:  # the binding raises a bare Exception
        raise ModelLoadError(f"the tokenizer in the GGUF file is inconsistent: {error!r}") from error
    named = {f"{name}_token": metadata.token(key) for name, key in _NAMED_TOKENS.items()}
    special_tokens = {name: piece for name, piece in named.items() if piece is not None}
    return Tokenizer(
        backend,
        eos_token_ids=[token for name in ("eos", "eot", "eom") if (token := metadata.token_id(name)) is not None],
        bos_token_id=metadata.token_id("bos"),
        chat_template=ChatTemplate(metadata.chat_template, special_tokens) if metadata.chat_template else None,
    )


def _build_backend(metadata: "_Metadata") -> tokenizers.Tokenizer:
    backend = _byte_level_backend(metadata) if metadata.model == "gpt2" else _sentencepiece_backend(metadata)
    _add_whole_tokens(backend, metadata)
    adds_bos = metadata.flag("add_bos_token", metadata.model == "llama" or metadata.pre in ADDS_BOS)
    bos = metadata.token("bos") if adds_bos else None
    eos = metadata.token("eos") if metadata.flag("add_eos_token", False) else None
    _put_around_texts(backend, bos, eos)
    return backend


_NAMED_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


@dataclass(frozen=True)
class _Metadata:
    """The keys below `tokenizer.` of one GGUF file."""

    fields: dict[str, Any]
    architecture: str
    tokens: list[str]
    token_types: Sequence[int]

    @classmethod
    def of(cls, file: GGUFFile) -> "_Metadata":
        prefix = "tokenizer."
        fields = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
        tokens = fields.get("ggml.tokens")
        if not tokens:
            raise ModelLoadError("the GGUF file holds no tokenizer (tokenizer.ggml.tokens); convert the model again")
        types = fields["ggml.token_type"].tolist() if "ggml.token_type" in fields else [NORMAL] * len(tokens)
        return cls(fields, file.architecture, tokens, types)

    @property
    def model(self) -> str:
        return str(self.fields.get("ggml.model"))

    @property
    def pre(self) -> str:
        return str(self.fields.get("ggml.pre", "default"))

    @property
    def chat_template(self) -> str | None:
        return self.fields.get("chat_template")

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.fields.get(f"ggml.{name}", default))

    def token_id(self, name: str) -> int | None:
        token_id = self.fields.get(f"ggml.{name}_token_id")
        return token_id if token_id is not None and 0 <= token_id < len(self.tokens) else None

    def token(self, name: str) -> str | None:
        token_id = self.token_id(name)
        return None if token_id is None else self.tokens[token_id]


def _byte_level_backend(metadata: _Metadata) -> tokenizers.Tokenizer:
    patterns = SPLIT_PATTERNS.get(metadata.pre)
    if patterns is None:
        raise ModelLoadError(
            f"the GGUF file cuts text by rule {metadata.pre!r} (tokenizer.ggml.pre), which is unknown; known are "
            f"{', '.join(sorted(SPLIT_PATTERNS))}: use the Hugging Face folder of the model"
        )
    vocab = {token: token_id for token_id, token in enumerate(metadata.tokens)}
    # A piece may itself begin with a blank, so the separator is looked for after its first character.
    merges = [(merge[: (cut := merge.index(" ", 1))], merge[cut + 1 :]) for merge in metadata.fields["ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=metadata.pre in IGNORES_MERGES))
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_backend(metadata: _Metadata) -> tokenizers.Tokenizer:
    tokens = metadata.tokens
    if metadata.architecture.startswith("gemma"):
        # Gemma's files spell tokens of several blanks with real blanks, and its scores are no merge order: the order
        # of the vocabulary is.
        tokens = ["▁" * len(token) if token.strip(" ") == "" else token for token in tokens]
        scores: Sequence[float] = [-float(token_id) for token_id in range(len(tokens))]
        adds_space = metadata.flag("add_space_prefix", False)
    else:
        scores = metadata.fields["ggml.scores"].tolist() if "ggml.scores" in metadata.fields else []
        adds_space = metadata.flag("add_space_prefix", True)
    if len(scores) != len(tokens):
        raise ModelLoadError(f"the GGUF file has {len(tokens)} tokens, but {len(scores)} scores for them")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    is_unknown = [token for token, kind in zip(tokens, metadata.token_types, strict=True) if kind == UNKNOWN]
    unk_token = is_unknown[0] if is_unknown else metadata.token("unknown")
    merges = merges_from_scores(tokens, scores, metadata.token_types)
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    blanks = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if adds_space else blanks
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], token_types: Sequence[int]
) -> list[tuple[str, str]]:
    """The merge list of a SentencePiece BPE vocabulary (Kudo and Richardson, 2018), best first.

    SentencePiece joins whichever neighbours give the piece with the highest score; a merge list says the same if it
    names every way to cut a piece into two pieces, in order of the pieces' scores.
    """
    mergeable = {
        token: token_id
        for token_id, (token, kind) in enumerate(zip(tokens, token_types, strict=True))
        if kind in (NORMAL, USER_DEFINED)
    }
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, token_id in mergeable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                ranked.append((-scores[token_id], mergeable[left], mergeable[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_whole_tokens(backend: tokenizers.Tokenizer, metadata: _Metadata) -> None:
    """Tokens that are found in a text before anything else: special ones, and user-defined ones."""
    special, plain = [], []
    for token, kind in zip(metadata.tokens, metadata.token_types, strict=True):
        # A token that the vocabulary spells differently (Gemma's blanks) is found by merging.
        if not token or backend.token_to_id(token) is None:
            continue
        if kind in (CONTROL, UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        # So is one with a blank mark: in the raw text it is spelled with a blank.
        elif kind == USER_DEFINED and not (metadata.model == "llama" and "▁" in token):
            plain.append(AddedToken(token, normalized=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _put_around_texts(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Make `encode` put these tokens (None: none) before and after every text."""
    backend.post_processor = processors.TemplateProcessing(
        single=[piece for piece in (bos, "$A", eos) if piece is not None],
        special_tokens=[(piece, backend.token_to_id(piece)) for piece in (bos, eos) if piece is not None],
    )
