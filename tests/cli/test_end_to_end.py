"""Each command once as a user runs it: a process of its own, the embedded model, a few tokens."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jitney.errors import ModelLoadError
from jitney.models.embedded import embedded_model_path

try:
    embedded_model_path(download=False)
except ModelLoadError as reason:
    pytestmark = pytest.mark.skip(reason=str(reason))

TIMEOUT_S = 240
SMALL = ("--max-model-len", "256", "--max-num-seqs", "4")


def jitney(*argv: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jitney.cli.main", *argv]
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, encoding="utf-8", timeout=TIMEOUT_S, check=True
    )


def test_generate_answers_a_question() -> None:
    done = jitney("generate", "What is the capital of France?", "--temperature", "0", "--max-tokens", "12", *SMALL)
    assert "Paris" in done.stdout
    assert "12 tokens" in done.stderr or "ended by stop" in done.stderr


def test_chat_answers_each_turn() -> None:
    typed = "What is the capital of France?\nAnd what is the capital of Italy?\n/exit\n"
    done = jitney("chat", "--temperature", "0", "--max-tokens", "12", *SMALL, typed=typed)
    first, second = done.stdout.splitlines()
    assert "Paris" in first and "Rome" in second


def test_run_batch_answers_good_lines_and_bad_ones(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "日本の首都は？"}]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    chat = {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(chat) + "\n{\n", encoding="utf-8")
    jitney("run-batch", "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), *SMALL)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    answers = {answer["custom_id"]: answer for answer in map(json.loads, lines)}
    assert answers[None]["error"]["code"] == "invalid_json"
    (choice,) = answers["chat"]["response"]["body"]["choices"]
    logprobs = choice["logprobs"]["content"]
    assert len(logprobs) == answers["chat"]["response"]["body"]["usage"]["completion_tokens"] <= 4
    for entry in logprobs:  # greedy: the sampled token is the most likely one
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]


def test_the_demo_compares_both_ways(tmp_path: Path) -> None:
    done = jitney("demo", "--out", str(tmp_path), "--num-requests", "1")
    assert "Same tokens in both runs: 1 of 1 requests." in done.stdout
    assert json.loads((tmp_path / "summary.json").read_text())["runs"][1]["num_output_tokens"] == 40


def test_ctrl_c_stops_generate_with_130_and_leaves_nothing_behind() -> None:
    command = [
        sys.executable,
        "-m",
        "jitney.cli.main",
        "generate",
        "--raw",
        "Once",
        "--ignore-eos",
        "--max-tokens",
        "240",
    ]
    with subprocess.Popen(
        [*command, *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1)  # it is generating
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=TIMEOUT_S) == 130
        assert process.stderr.read().decode().endswith("jitney: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
