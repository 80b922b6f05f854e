from dataclasses import fields

import generate_docs
from jitney.config import EngineConfig


def test_the_settings_page_is_up_to_date() -> None:
    assert generate_docs.SETTINGS_PAGE.read_text(encoding="utf-8") == generate_docs.settings_page(), "run `make docs`"


def test_the_settings_page_has_one_row_for_each_setting() -> None:
    rows = [line for line in generate_docs.settings_page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [field.name for field in fields(EngineConfig)]
