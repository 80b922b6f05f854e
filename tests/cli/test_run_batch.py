import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from jitney.async_llm import AsyncLLM
from jitney.batch.files import OutputFile
from jitney.cli import main as cli


def write_lines(path: Path, count: int, **body: Any) -> Path:
    lines = [
        {
            "custom_id": f"line {i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "toy", "prompt": f"Hello {i}", "max_tokens": 5, "ignore_eos": True} | body,
        }
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(source: Path, target: Path, *argv: str) -> int:
    return cli.main(["run-batch", "-i", str(source), "-o", str(target), *argv])


@pytest.mark.usefixtures("toy_model")
class TestRunBatch:
    def test_every_line_is_answered_and_a_bad_one_changes_no_exit_status(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = write_lines(tmp_path / "in.jsonl", 20)
        with source.open("a") as file:
            file.write("{broken\n")
        assert run(source, tmp_path / "out.jsonl") == 0
        answers = read_lines(tmp_path / "out.jsonl")
        assert {answer["custom_id"] for answer in answers} == {f"line {i}" for i in range(20)} | {None}
        assert re.search(
            r"20 answered, 1 failed; 150 prompt and 100 output tokens in [\d.]+ s \([\d,]+ tokens/s\); "
            r"answers in .*out.jsonl\n$",
            capsys.readouterr().err,
        )

    def test_an_existing_output_stops_the_command_before_a_model_is_loaded(
        self, tmp_path: Path, toy_model: list[AsyncLLM], capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = write_lines(tmp_path / "in.jsonl", 1)
        (tmp_path / "out.jsonl").write_text("precious")
        assert run(source, tmp_path / "out.jsonl") == 2
        assert "--overwrite" in capsys.readouterr().err
        assert (tmp_path / "out.jsonl").read_text() == "precious" and not toy_model
        assert run(source, tmp_path / "out.jsonl", "--overwrite") == 0
        assert len(read_lines(tmp_path / "out.jsonl")) == 1

    def test_a_missing_input_leaves_no_output_behind(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(tmp_path / "in.jsonl", tmp_path / "out.jsonl") == 2
        assert "cannot read the input file" in capsys.readouterr().err
        assert not (tmp_path / "out.jsonl").exists()

    def test_an_empty_input_gives_an_empty_output(self, tmp_path: Path) -> None:
        (tmp_path / "in.jsonl").write_text("\n")
        assert run(tmp_path / "in.jsonl", tmp_path / "out.jsonl") == 0
        assert (tmp_path / "out.jsonl").read_bytes() == b""

    def test_ctrl_c_keeps_what_was_finished_and_exits_with_130(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write = OutputFile.write
        written: list[Any] = []

        def interrupted(self: OutputFile, answer: dict[str, Any]) -> None:
            write(self, answer)
            written.append(answer)
            if len(written) == 3:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(OutputFile, "write", interrupted)
        assert run(write_lines(tmp_path / "in.jsonl", 50, max_tokens=50), tmp_path / "out.jsonl") == 130
        assert read_lines(tmp_path / "out.jsonl")[:3] == written[:3]
        assert re.search(r"\d+ answered, 0 failed, \d+ not reached;", capsys.readouterr().err)
