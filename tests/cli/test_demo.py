import json
from pathlib import Path
from typing import Any

import pytest

import jitney.demo.comparison
import jitney.demo.prompts
from jitney.cli import main as cli
from jitney.demo.prompts import DemoRequest
from jitney.llm import LLM

from ..letter_llm import toy_llm


@pytest.fixture
def toy_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(model: Any, **settings: Any) -> LLM:
        return toy_llm(**settings)

    requests = [DemoRequest("What?", 30), DemoRequest("なに？", 25), DemoRequest("Why?", 8)] * 8
    monkeypatch.setattr(jitney.demo.comparison, "LLM", make)
    monkeypatch.setattr(jitney.demo.prompts, "demo_requests", lambda: requests)


@pytest.mark.usefixtures("toy_demo")
def test_the_demo_prints_both_runs_and_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "demo"
    assert cli.main(["demo", "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "24 requests, 504 tokens to generate, 16 seats" in out
    assert "1/2  sync static" in out and "2/2  async continuous" in out
    assert "Same tokens in both runs: 24 of 24 requests." in out
    assert "> What?" in out and "> なに？" in out
    assert str(folder / "outputs.jsonl") in out and str(folder / "summary.json") in out
    assert sorted(path.name for path in folder.iterdir()) == [
        "async-continuous.trace.json",
        "outputs.jsonl",
        "summary.json",
        "sync-static.trace.json",
    ]
    assert json.loads((folder / "async-continuous.trace.json").read_text())["traceEvents"]


@pytest.mark.usefixtures("toy_demo")
def test_fewer_requests_may_be_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--out", str(tmp_path), "--num-requests", "2"]) == 0
    assert len((tmp_path / "outputs.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [(["--num-requests", "0"], "must be at least 1"), (["--out", "/dev/null/demo"], "cannot create the folder")],
)
def test_wrong_flags_exit_with_2(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *argv]) == 2
    assert complaint in capsys.readouterr().err
