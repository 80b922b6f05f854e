import asyncio
import io
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from jitney.async_llm import AsyncLLM
from jitney.cli import main as cli
from jitney.sampling_params import SamplingParams

from ..letter_llm import MAX_MODEL_LEN, toy_async_llm


def expected_text(prompt: str, **params: object) -> str:
    llm = toy_async_llm()

    async def last() -> str:
        async for output in llm.generate(prompt, SamplingParams(**params), request_id="generate"):  # type: ignore[arg-type]
            text = output.outputs[0].text
        return text

    text = asyncio.run(last())
    llm.close()
    return text


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.usefixtures("toy_model")
class TestGenerate:
    def test_the_text_goes_to_stdout_and_the_speed_to_stderr(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["generate", "--raw", "Hello", "--max-tokens", "12", "--ignore-eos"]) == 0
        out, err = capsys.readouterr()
        assert out == expected_text("Hello", max_tokens=12, ignore_eos=True) + "\n"
        assert re.fullmatch(
            r"5 prompt tokens; 12 tokens in [\d.]+ s \([\d.]+ tokens/s\); first token after \d+ ms; ended by length\n",
            err,
        )

    def test_the_chat_template_is_used_if_there_is_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        for argv in (["Hello"], ["--chat", "Hello"]):
            assert cli.main(["generate", *argv]) == 0
            assert capsys.readouterr().out.rstrip("\n") == expected_text("[user]Hello\n[assistant]")

    @pytest.mark.parametrize("argv", [[], ["-"]])
    def test_a_piped_prompt_loses_only_its_last_line_end(
        self, argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe(monkeypatch, "二行\nです\n".encode())
        assert cli.main(["generate", "--raw", *argv]) == 0
        assert capsys.readouterr().out.rstrip("\n") == expected_text("二行\nです")

    def test_a_prompt_is_read_from_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "prompt.txt").write_bytes(b"Hello\r\n")
        assert cli.main(["generate", "--raw", "--file", str(tmp_path / "prompt.txt")]) == 0
        assert capsys.readouterr().out.rstrip("\n") == expected_text("Hello")

    def test_several_outputs_are_printed_one_after_the_other(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["generate", "--raw", "Hello", "--n", "3", "--max-tokens", "5", "--ignore-eos"]) == 0
        out, err = capsys.readouterr()
        assert re.fullmatch(r"[a-z]{1,5}\n\n\[2 of 3\]\n[a-z]{1,5}\n\n\[3 of 3\]\n[a-z]{1,5}\n", out)
        assert "15 tokens" in err

    def test_the_engines_seed_decides_what_is_drawn(self, capsys: pytest.CaptureFixture[str]) -> None:
        texts = []
        for seed in ("1", "2", "1"):
            assert cli.main(["generate", "--raw", "Hello", "--seed", seed]) == 0
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[2] != texts[1]

    def test_a_timeline_is_written(self, tmp_path: Path) -> None:
        path = tmp_path / "run.json"
        assert cli.main(["generate", "Hello", "--timeline", str(path)]) == 0
        assert json.loads(path.read_text())["traceEvents"]

    @pytest.mark.parametrize(
        ("argv", "complaint"),
        [
            (["Hello", "--file", "x"], "not both"),
            ([""], "the prompt is empty"),
            (["--file", "/no/such/file"], "cannot read --file /no/such/file"),
            (["Hello", "--timeline", "/no/such/folder/run.json"], "cannot be written"),
            (["Hello", "--top-p", "2"], "top_p=2.0 is out of range"),
            (["x" * MAX_MODEL_LEN], "no room for an output"),
            (["Hello", "--max-tokens", str(MAX_MODEL_LEN)], "lower max_tokens to"),
            (["Hello", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"], "below max_num_seqs"),
        ],
    )
    def test_a_wrong_request_exits_with_2_and_one_line(
        self, argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["generate", "--raw", *argv]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("jitney: error: ") and complaint in err and err.count("\n") == 1

    def test_a_prompt_that_is_no_text_is_refused(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe(monkeypatch, b"\xff\xfe")
        assert cli.main(["generate"]) == 2
        assert "not UTF-8" in capsys.readouterr().err

    def test_at_a_terminal_a_missing_prompt_is_asked_for(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        assert cli.main(["generate"]) == 2
        assert "give a prompt" in capsys.readouterr().err


def test_ctrl_c_keeps_the_text_so_far_and_exits_with_130(
    toy_model: list[AsyncLLM], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt_at_three_letters(text: str) -> None:
        sys.stdout.write(text)
        if len(text) >= 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("jitney.cli.streaming.TextPrinter.show", lambda self, text: interrupt_at_three_letters(text))
    assert cli.main(["generate", "--raw", "Hello", "--ignore-eos", "--max-tokens", "400"]) == 130
    assert "jitney: interrupted" in capsys.readouterr().err
    assert toy_model[0].engine.num_unfinished == 0
