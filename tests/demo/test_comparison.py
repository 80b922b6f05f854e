import json
from pathlib import Path

import numpy as np
import pytest

from jitney.demo.comparison import NUM_SEATS, STATIC, DemoRun, measure, num_equal, run_way
from jitney.demo.prompts import DemoRequest
from jitney.engine.records import StepRecords
from jitney.errors import RequestError
from jitney.outputs import CompletionOutput, RequestOutput
from jitney.types import RequestMetrics

from ..letter_llm import EOS, MAX_MODEL_LEN


def test_both_ways_do_the_same_work_and_say_the_same(runs: list[DemoRun], requests: list[DemoRequest]) -> None:
    total = sum(request.num_tokens for request in requests)
    assert [run.measurement.num_output_tokens for run in runs] == [total, total]
    assert num_equal(*runs) == len(requests)


def test_continuous_uses_the_seats_that_static_leaves_to_finished_rows(runs: list[DemoRun]) -> None:
    static, continuous = (run.measurement for run in runs)
    assert continuous.seat_occupancy > 1.5 * static.seat_occupancy
    assert continuous.tokens_per_s > 1.5 * static.tokens_per_s
    assert continuous.ttft_p50_s < static.ttft_p50_s
    assert continuous.num_steps < static.num_steps


def test_an_answer_ends_where_the_model_ended_it(runs: list[DemoRun]) -> None:
    for output, answer in zip(runs[0].outputs, runs[0].answers, strict=True):
        token_ids = output.outputs[0].token_ids
        end = token_ids.index(EOS) if EOS in token_ids else len(token_ids)
        assert answer == bytes(token_ids[:end]).decode()


def test_the_trace_holds_the_measured_requests_and_no_warm_up(
    runs: list[DemoRun], requests: list[DemoRequest], tmp_path: Path
) -> None:
    events = json.loads((tmp_path / "sync static.json").read_text())["traceEvents"]
    steps = [event for event in events if event["name"].startswith("step ")]
    assert len(steps) == runs[0].measurement.num_steps


def test_a_request_that_fails_ends_the_comparison(toy_demo: None, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="max_model_len"):
        run_way(STATIC, None, [DemoRequest("x" * MAX_MODEL_LEN, 8)], tmp_path / "run.json")


def test_times_count_from_the_moment_the_requests_were_sent() -> None:
    records = StepRecords()
    names = records.since().dtype.names or ()
    times = {"device_start": 10.0, "device_end": 12.0, "num_rows": NUM_SEATS, "num_wasted_rows": NUM_SEATS // 2}
    records.add(*(times.get(name, 0.0) for name in names))
    outputs = [
        RequestOutput(
            "r",
            "Hi",
            [1],
            [CompletionOutput(0, "", [1, 2, 3])],
            True,
            metrics=RequestMetrics(arrival_time=10.0 + late, first_token_time=first, finished_time=14.0),
        )
        for late, first in ((0.0, 11.0), (0.5, 12.0), (0.5, 13.0))
    ]
    measured = measure("x", outputs, records.since(), NUM_SEATS)
    assert (measured.seconds, measured.num_output_tokens, measured.tokens_per_s) == (4.0, 9, 9 / 4)
    assert measured.ttft_p50_s == 2.0
    assert measured.ttft_p99_s == pytest.approx(np.percentile([1.0, 2.0, 3.0], 99))
    assert (measured.seat_occupancy, measured.device_idle_share) == (0.5, 0.0)
