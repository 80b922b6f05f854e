"""The demo's results as text and as files. Knows no engine and runs nothing."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jitney.demo.comparison import NUM_SEATS, DemoRun, Measurement, num_equal
from jitney.demo.prompts import DemoRequest

EXPLANATION = """\
Both runs did the same work: the same prompts, all sent at once, the same number of greedy tokens for each.
Static batching fills {seats} seats and opens the door again when the last of them has finished: a finished row keeps
its seat and the device goes on computing it for nobody. Continuous batching gives a free seat away at the next step;
only at the end of the run, when nobody waits any more, do its seats stay empty.
"seats used" is the share of seats x time that computed for somebody, "device idle" the share in which the device had
nothing to do, "first token" the time from sending to a request's first token (median / 99th percentile)."""

EXPLANATION_JA = """\
同じプロンプトを同時に送り、同じ数のトークンを生成しました。静的バッチは、全員が終わるまで空いた席を
計算し続けます。連続バッチは、空いた席を次のステップで次のリクエストに渡します。
表の seats used は「誰かのために計算した席の割合」、device idle は「デバイスが何もしていない時間の割合」、
first token は送信から最初のトークンまでの秒数（中央値 / 99パーセンタイル）です。"""

SMALL_MODEL = "(The embedded model is tiny and was trained on English; its Japanese is not to be trusted.)"

MAX_SAMPLE_CHARACTERS = 400


def result_table(runs: Sequence[Measurement]) -> str:
    """One line per run."""
    header = f"{'':18}{'output':>8}{'':>9}{'':>10}{'first token':>16}{'seats':>8}{'device':>8}\n"
    header += f"{'':18}{'tokens':>8}{'seconds':>9}{'tokens/s':>10}{'p50 / p99 (s)':>16}{'used':>8}{'idle':>8}"
    return "\n".join([header, *(_row(run) for run in runs)])


def ratio_line(static: Measurement, continuous: Measurement) -> str:
    """How the second run compares with the first."""
    speed = continuous.tokens_per_s / static.tokens_per_s
    wait = continuous.ttft_p50_s / static.ttft_p50_s if static.ttft_p50_s else 1.0
    names = f"{continuous.name} / {static.name}"
    return f"{names}: {speed:.2f} x the tokens/s, {wait:.2f} x the median time to the first token"


def equality_line(static: DemoRun, continuous: DemoRun) -> str:
    """Whether both runs said the same."""
    equal, total = num_equal(static, continuous), len(static.outputs)
    return f"Same tokens in both runs: {equal} of {total} requests."


def explanation(environment: Mapping[str, str]) -> str:
    """What the numbers mean, in Japanese as well where the locale is Japanese."""
    text = EXPLANATION.format(seats=NUM_SEATS)
    locale = environment.get("LC_ALL") or environment.get("LANG") or ""
    return f"{text}\n{EXPLANATION_JA}" if locale.startswith("ja") else text


def samples(requests: Sequence[DemoRequest], answers: Sequence[str]) -> str:
    """Up to three outputs, one of them Japanese: the first ones whose prompts are short enough to read."""
    order = [index for index, request in enumerate(requests) if len(request.prompt) < 100 and request.num_tokens > 24]
    japanese = [index for index in order if requests[index].is_japanese][:1]
    others = [index for index in order if not requests[index].is_japanese][:2]
    return "\n\n".join(f"> {requests[index].prompt}\n{_clipped(answers[index])}" for index in others + japanese)


def write_outputs(path: Path, requests: Sequence[DemoRequest], runs: Sequence[DemoRun]) -> None:
    """One JSON line per request: what was asked and what each run said, and when."""
    with path.open("w", encoding="utf-8") as file:
        for index, request in enumerate(requests):
            answers = {run.measurement.name: _output_record(run, index) for run in runs}
            record = {"prompt": request.prompt, "num_tokens": request.num_tokens, "answers": answers}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_summary(path: Path, model: str, runs: Sequence[DemoRun]) -> None:
    """The measurements with everything needed to judge them."""
    summary: dict[str, Any] = {
        "model": model,
        "num_requests": len(runs[0].outputs),
        "num_seats": NUM_SEATS,
        "runs": [asdict(run.measurement) for run in runs],
        "num_requests_with_equal_tokens": num_equal(runs[0], runs[-1]),
        "machine": {"platform": platform.platform(), "processor": platform.machine(), "cpus": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "numpy")},
        },
    }
    path.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _row(run: Measurement) -> str:
    first_token = f"{run.ttft_p50_s:.2f} / {run.ttft_p99_s:.2f}"
    return (
        f"{run.name:18}{run.num_output_tokens:>8,}{run.seconds:>9.1f}{run.tokens_per_s:>10.1f}{first_token:>16}"
        f"{run.seat_occupancy:>8.0%}{run.device_idle_share:>8.1%}"
    )


def _clipped(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_SAMPLE_CHARACTERS else text[:MAX_SAMPLE_CHARACTERS] + " ..."


def _output_record(run: DemoRun, index: int) -> dict[str, Any]:
    output = run.outputs[index]
    metrics = output.metrics
    return {
        "text": run.answers[index],
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_output_tokens": len(output.outputs[0].token_ids),
        "first_token_s": _since_arrival(metrics.first_token_time, metrics.arrival_time),
        "finished_s": _since_arrival(metrics.finished_time, metrics.arrival_time),
    }


def _since_arrival(moment: float | None, arrival: float) -> float | None:
    return None if moment is None else round(moment - arrival, 6)
