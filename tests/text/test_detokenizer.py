"""The streaming invariant: deltas add up to decode(all ids), and no delta holds half a character."""

from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from jitney.text.detokenizer import byte_alphabet
from jitney.text.tokenizer import Tokenizer

TEXTS = (
    "日本語のテキスト。東京は、日本の首都です。",
    "👩‍👩‍👧‍👦 family, 🇯🇵🇫🇷 flags, 👍🏽 skin, ❤️ and 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "  lead, trail  \n\n\tdef f(x):\r\n    return 'naïve café' + e\u0301\u200d",
    "ab\u0000\ufffd\ufeff漢字𠮷野家𩸽 नमस्ते ราคา",
    "",
)


def spm_steps(left: int = 1) -> decoders.Decoder:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left, 0)]
    return decoders.Sequence(parts)


def tokenizer_with(decoder: decoders.Decoder | None) -> Tokenizer:
    """Pieces that each decoder treats in its own way, some of them odd."""
    pieces = ["▁", "▁▁", "▁the", "the", "##ing", ".", "▁ .", "do", "n't", "日", "Ġa", "é", "\ufffd", "e</w>", "<0xZZ>"]
    pieces += [f"<0x{byte:02X}>" for byte in (0x0A, 0x20, 0x41, 0xE3, 0x81, 0x82, 0xF0, 0x9F, 0x91, 0xA9, 0xFF)]
    backend = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("plain ▁ added"), AddedToken("é x")])
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend)


DECODERS: dict[str, Callable[[], decoders.Decoder | None]] = {
    "none": lambda: None,
    "byte level": decoders.ByteLevel,
    "byte level, fused": lambda: decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
    "sentencepiece": spm_steps,
    "sentencepiece, three blanks stripped": lambda: spm_steps(left=3),
    "gemma": lambda: decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "metaspace": decoders.Metaspace,
    "metaspace after byte fallback": lambda: decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "wordpiece": decoders.WordPiece,
    "bpe suffix": decoders.BPEDecoder,
    "ctc": decoders.CTC,
    "replace after fuse": lambda: decoders.Sequence([decoders.Fuse(), decoders.Replace("▁the", " T")]),
}
ODD = {name: tokenizer_with(make()) for name, make in DECODERS.items()}


def stream(tokenizer: Tokenizer, pushes: list[list[int]], skip: bool) -> list[str]:
    detokenizer = tokenizer.new_stream(skip)
    return [*(detokenizer.push(ids) for ids in pushes), detokenizer.finish()]


def pushes_of(ids: list[int], sizes: list[int]) -> list[list[int]]:
    pushes, rest = [], list(ids)
    for size in sizes:
        pushes.append(rest[:size])
        rest = rest[size:]
    return [*pushes, rest]


SIZES = st.lists(st.integers(0, 5), max_size=20)


@pytest.mark.parametrize("name", DECODERS)
@given(ids=st.lists(st.integers(0, 32), max_size=14), sizes=SIZES, skip=st.booleans())
def test_deltas_add_up_to_decode_for_every_kind_of_decoder(
    name: str, ids: list[int], sizes: list[int], skip: bool
) -> None:
    tokenizer = ODD[name]
    assert "".join(stream(tokenizer, pushes_of(ids, sizes), skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("name", DECODERS)
@given(ids=st.lists(st.integers(0, 32), max_size=14))
def test_pending_text_is_what_finish_would_add_if_it_is_whole(name: str, ids: list[int]) -> None:
    detokenizer = ODD[name].new_stream()
    detokenizer.push(ids)
    pending = detokenizer.pending()
    assert pending in ("", detokenizer.finish())


def test_blanks_that_the_decoder_strips_from_the_end_are_never_emitted() -> None:
    # One case by hand: the tokenizers library itself panics when such a decoder meets a shorter text.
    tokenizer = tokenizer_with(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    )
    ids = [3, 0, 3, 0]
    assert tokenizer.decode(ids) == "the the"
    assert "".join(stream(tokenizer, [[token] for token in ids], True)) == "the the"


@given(ids=st.lists(st.integers(0, 49_151), max_size=40), sizes=SIZES, skip=st.booleans())
def test_deltas_add_up_to_decode_for_any_ids_of_the_real_vocabulary(
    smollm2: Tokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    assert "".join(stream(smollm2, pushes_of(ids, sizes), skip)) == smollm2.decode(ids, skip)


@given(ids=st.lists(st.integers(0, 350), max_size=40), sizes=SIZES, skip=st.booleans())
def test_deltas_add_up_to_decode_for_any_ids_with_byte_fallback(
    spm: Tokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    assert "".join(stream(spm, pushes_of(ids, sizes), skip)) == spm.decode(ids, skip)


@given(data=st.binary(max_size=24))
def test_any_bytes_one_token_each_stream_like_they_decode(smollm2: Tokenizer, data: bytes) -> None:
    spelling = byte_alphabet()
    ids = [smollm2.backend.token_to_id(spelling[byte]) for byte in data]
    known = [token for token in ids if token is not None]  # the vocabulary lacks bytes that no text contains
    assert "".join(stream(smollm2, [[token] for token in known], False)) == smollm2.decode(known, False)


@pytest.mark.parametrize("text", [*TEXTS, "".join(TEXTS)], ids=range(len(TEXTS) + 1))
@pytest.mark.parametrize("kind", ["smollm2", "spm"])
def test_no_delta_of_a_valid_text_holds_a_broken_character(
    kind: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(text, add_special_tokens=False)
    deltas = stream(tokenizer, [[token] for token in ids], True)
    assert "".join(deltas) == text
    assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")


def test_a_character_is_emitted_with_its_last_byte(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("東京")
    detokenizer = smollm2.new_stream()
    assert [detokenizer.push([token]) for token in ids] == ["", "東", "", "京"]


def test_a_byte_run_is_emitted_as_soon_as_it_ends(spm: Tokenizer) -> None:
    detokenizer = spm.new_stream()
    ids = spm.encode("a\nb", add_special_tokens=False)
    assert [spm.backend.id_to_token(token) for token in ids] == ["▁a", "<0x0A>", "b"]
    assert [detokenizer.push([token]) for token in ids] == ["a", "", "\nb"]


def test_the_text_held_back_stays_short_however_long_the_output(spm: Tokenizer) -> None:
    detokenizer = spm.new_stream()
    ids = spm.encode("the cats at 日本語 " * 50, add_special_tokens=False)
    for token in ids:
        assert detokenizer.push([token])
        assert detokenizer.pending() == ""
