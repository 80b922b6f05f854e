"""Tokenizers rebuilt from GGUF metadata. Oracles: ids made by transformers' own conversion of the same file, and
SentencePiece's merging rule written out."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.errors import ModelLoadError
from jitney.text.detokenizer import byte_alphabet
from jitney.text.gguf_pre_tokenizers import SPLIT_PATTERNS
from jitney.text.tokenizer import Tokenizer

KNOWN_IDS = [
    ("What is the capital of France?", [1780, 314, 260, 3575, 282, 4649, 47]),
    ("Give me three tips for better sleep.", [26533, 549, 1296, 5608, 327, 1365, 2801, 30]),
    ("Note 743455: Explain why", [8928, 216, 39, 36, 35, 36, 37, 37, 42, 16374, 1701]),
    ("日本の首都", [23274, 115, 40993, 26453, 180, 116, 240, 180, 38466]),
    ("東京タワー", [30679, 126, 16736, 122, 10391, 140, 11100, 124, 35130]),
    (
        "👩‍👩‍👧 🇯🇵",
        [10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117, 15107, 225, 124, 10813, 225, 130],
    ),
    ("def f(x):\n    return x + 1\n", [1604, 275, 24, 104, 727, 472, 1003, 1792, 1232, 216, 33, 198]),
    ("In 1987, 3.14", [788, 216, 33, 41, 40, 39, 28, 216, 35, 30, 33, 36]),
    ("it's I'LL we'd", [269, 506, 339, 23, 16421, 392, 6737]),
    ("  two  blanks  ", [216, 827, 216, 45843, 256]),
    ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
    ("a\r\n\r\n\tb", [81, 18682, 197, 82]),
    ("", []),
]


@pytest.mark.parametrize(("text", "ids"), KNOWN_IDS, ids=range(len(KNOWN_IDS)))
def test_the_embedded_model_encodes_to_the_known_ids(smollm2: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm2.encode(text) == ids
    assert smollm2.decode(ids, skip_special_tokens=False) == text


def test_the_embedded_model_splits_numbers_into_digits(smollm2: Tokenizer) -> None:
    digits = [smollm2.encode(digit)[0] for digit in "9081726354"]
    assert smollm2.encode("9081726354") == digits


@given(st.text(max_size=60))
def test_the_embedded_model_gives_every_ordinary_text_back(smollm2: Tokenizer, text: str) -> None:
    # Some control characters and bytes of rare scripts have no token; the model cannot see them.
    spelling = byte_alphabet()
    covered = {byte for byte in range(256) if smollm2.backend.token_to_id(spelling[byte]) is not None}
    ordinary = "".join(character for character in text if set(character.encode()) <= covered)
    assert smollm2.decode(smollm2.encode(ordinary), skip_special_tokens=False) == ordinary


def test_the_embedded_model_knows_its_special_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49_152
    assert smollm2.bos_token_id == 1
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.encode("<|im_start|>") == [1]
    assert smollm2.decode([1, 6004, 2]) == "hi"


def test_the_embedded_models_chat_template_gives_the_known_prompt(smollm2: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert smollm2.apply_chat_template(messages) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, *messages, {"role": "assistant", "content": "Hello"}],
        add_generation_prompt=False,
    ) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n"
    )
    assert smollm2.encode(smollm2.apply_chat_template(messages))[-8:] == [198, 26843, 2, 198, 1, 520, 9531, 198]


def sentencepiece_encode(text: str, vocabulary: list[tuple[str, float, int]]) -> list[int]:
    """Join the neighbours that give the best-scored piece, leftmost first, until none does; the rest are bytes."""
    scores = {piece: score for piece, score, kind in vocabulary if kind == 1}
    ids = {piece: index for index, (piece, _, _) in enumerate(vocabulary)}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            break
        left = -max(pairs)[1]
        symbols[left : left + 2] = ["".join(symbols[left : left + 2])]
    found = []
    for symbol in symbols:
        as_bytes = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        found += [ids[piece] for piece in ([symbol] if symbol in ids else as_bytes)]
    return found


@given(text=st.text(alphabet="thecatsb日本語 xyz\né👩", max_size=40))
def test_sentencepiece_vocabularies_encode_by_score(
    spm: Tokenizer, spm_vocabulary: list[tuple[str, float, int]], text: str
) -> None:
    ids = spm.encode(text, add_special_tokens=False)
    assert ids == sentencepiece_encode(text, spm_vocabulary)
    assert spm.decode(ids) == text


def test_sentencepiece_files_get_a_begin_token_and_all_their_end_tokens(spm: Tokenizer) -> None:
    assert spm.encode("the cat")[0] == spm.bos_token_id == 1
    assert spm.eos_token_ids == (2, 3)
    assert spm.decode(spm.encode("the cat")) == "the cat"
    assert spm.encode("</s><|user|>", add_special_tokens=False) == [2, 3]


def write_gguf(path: Path, model: str = "gpt2", pre: str | None = "gpt-2", **keys: Any) -> Path:
    """A byte-level vocabulary with a few merges; `keys` are further tokenizer.ggml.* values."""
    merges = ["Ġ a", "1 2", "12 3", "123 4", "a b", "a Ì"]
    pieces = [*byte_alphabet().values(), *(merge.replace(" ", "") for merge in merges), "<s>", "</s>", "abc"]
    types = [1] * (len(pieces) - 3) + [3, 3, 1]
    writer = gguf.GGUFWriter(path, keys.pop("architecture", "llama"))
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(pieces.index("<s>"))
    writer.add_eos_token_id(pieces.index("</s>"))
    for key, value in keys.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str | None]:
    return [tokenizer.backend.id_to_token(token) for token in tokenizer.encode(text)]


@pytest.mark.parametrize("pre", sorted(SPLIT_PATTERNS))
def test_every_known_split_rule_gives_texts_back(tmp_path: Path, pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(write_gguf(tmp_path / "m.gguf", pre=pre))
    text = "It's 12345 déjà-vu, 東京タワー!\r\n\n  if (a[0] == 'b') {\t} नमस्ते \u200d😀 "
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["1234", "Ġa"]),
        ("smollm", ["1", "2", "3", "4", "Ġa"]),
        ("llama-bpe", ["<s>", "123", "4", "Ġa"]),
        ("qwen2", ["1", "2", "3", "4", "Ġa"]),
        ("default", ["123", "4", "Ġa"]),
    ],
)
def test_numbers_are_split_as_the_files_rule_says(tmp_path: Path, pre: str, expected: list[str]) -> None:
    assert pieces_of(Tokenizer.from_gguf(write_gguf(tmp_path / "m.gguf", pre=pre)), "1234 a") == expected


def test_combining_marks_stay_with_their_word_only_where_the_rule_says(tmp_path: Path) -> None:
    # The first byte of U+0301 is spelled "Ì"; the vocabulary has a merge that joins it to "a".
    accented = "a\u0301"
    assert pieces_of(Tokenizer.from_gguf(write_gguf(tmp_path / "a.gguf", pre="qwen35")), accented)[0] == "aÌ"
    assert pieces_of(Tokenizer.from_gguf(write_gguf(tmp_path / "b.gguf", pre="qwen2")), accented)[0] == "a"


def test_whole_tokens_are_taken_before_merges_where_the_rule_says(tmp_path: Path) -> None:
    # "abc" is a token that no merge leads to.
    assert pieces_of(Tokenizer.from_gguf(write_gguf(tmp_path / "a.gguf", pre="gpt-2")), "abc") == ["ab", "c"]
    assert pieces_of(Tokenizer.from_gguf(write_gguf(tmp_path / "b.gguf", pre="tekken")), "abc") == ["<s>", "abc"]


def test_the_files_own_word_on_begin_and_end_tokens_counts(tmp_path: Path) -> None:
    both = Tokenizer.from_gguf(write_gguf(tmp_path / "a.gguf", add_bos_token=True, add_eos_token=True))
    assert pieces_of(both, "a") == ["<s>", "a", "</s>"]
    assert both.encode("a", add_special_tokens=False) == both.encode("a")[1:-1]
    neither = Tokenizer.from_gguf(write_gguf(tmp_path / "b.gguf", pre="llama-bpe", add_bos_token=False))
    assert pieces_of(neither, "a") == ["a"]


def test_gemmas_blanks_and_merge_order_are_followed(tmp_path: Path) -> None:
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "bc", "ab", "▁", "a", "b", "c", "▁a"]
    types = [3, 3, 3, 2, 4, 1, 1, 1, 1, 1, 1, 1]
    path = tmp_path / "gemma.gguf"
    writer = gguf.GGUFWriter(path, "gemma2")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * len(pieces))
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = Tokenizer.from_gguf(path)
    assert pieces_of(tokenizer, "abc") == ["<bos>", "a", "bc"], "the earlier piece wins, no blank is put before"
    assert pieces_of(tokenizer, "a  a") == ["<bos>", "a", "▁▁", "a"]
    assert tokenizer.decode(tokenizer.encode(" a  b")) == " a  b"
    assert tokenizer.vocab_size == len(pieces)


@pytest.mark.parametrize("model", ["t5", "bert", "rwkv"])
def test_other_kinds_are_refused_by_name(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelLoadError, match=f"'{model}'"):
        Tokenizer.from_gguf(write_gguf(tmp_path / "m.gguf", model=model))


def test_an_unknown_split_rule_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="'made-up'"):
        Tokenizer.from_gguf(write_gguf(tmp_path / "m.gguf", pre="made-up"))


def test_a_vocabulary_without_its_merges_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="merges"):
        Tokenizer.from_gguf(tmp_path / "m.gguf")


def test_files_that_are_no_gguf_or_hold_no_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ModelLoadError, match=r"text\.gguf"):
        Tokenizer.from_gguf(tmp_path / "text.gguf")
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        Tokenizer.from_gguf(tmp_path / "missing.gguf")
    writer = gguf.GGUFWriter(tmp_path / "bare.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.tokens"):
        Tokenizer.from_gguf(tmp_path / "bare.gguf")
