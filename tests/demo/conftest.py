from pathlib import Path
from typing import Any

import pytest

import jitney.demo.comparison
from jitney.demo.comparison import CONTINUOUS, NUM_SEATS, STATIC, DemoRun, run_way
from jitney.demo.prompts import DemoRequest
from jitney.llm import LLM

from ..letter_llm import toy_llm


@pytest.fixture
def toy_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo runs on toy engines, whatever model it names."""

    def make(model: Any, **settings: Any) -> LLM:
        return toy_llm(**settings)

    monkeypatch.setattr(jitney.demo.comparison, "LLM", make)


@pytest.fixture
def requests() -> list[DemoRequest]:
    """One long answer in every batch of seats, as in life."""
    short = [DemoRequest(f"What is {index}?", 4 + index % 5) for index in range(3 * NUM_SEATS)]
    for index in range(0, len(short), NUM_SEATS):
        short[index] = DemoRequest(f"百年の物語 {index}", 64)
    return short


@pytest.fixture
def runs(toy_demo: None, requests: list[DemoRequest], tmp_path: Path) -> list[DemoRun]:
    return [run_way(way, None, requests, tmp_path / f"{way.name}.json") for way in (STATIC, CONTINUOUS)]
