"""The two READMEs say the same: same sections, same commands, same figures."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENGLISH, JAPANESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.ja.md"))


def code(text: str) -> list[list[str]]:
    """Lines of each fenced block, without the comments, which are translated."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL)
    return [[line.split("#")[0].rstrip() for line in block.splitlines()] for block in blocks]


def tables(text: str) -> list[list[str]]:
    """The figures of each table row."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [re.findall(r"\d(?:[\d,.]*\d)?", row) for row in rows]


def links(text: str) -> set[str]:
    return set(re.findall(r"\]\((?!README)([^)]+)\)", text))


def test_both_have_the_same_sections() -> None:
    headings = [re.findall(r"^#+", text, flags=re.MULTILINE) for text in (ENGLISH, JAPANESE)]
    assert headings[0] == headings[1] and len(headings[0]) >= 8


def test_both_show_the_same_code_and_output() -> None:
    assert code(ENGLISH) == code(JAPANESE) and len(code(ENGLISH)) >= 6


def test_both_give_the_same_figures() -> None:
    assert tables(ENGLISH) == tables(JAPANESE) and len(tables(ENGLISH)) >= 10


def test_both_link_to_the_same_pages_and_the_pages_exist() -> None:
    assert links(ENGLISH) == links(JAPANESE)
    missing = [link for link in links(ENGLISH) if not link.startswith("http") and not (ROOT / link).is_file()]
    assert missing == []
