"""The GPU check's own code on a CPU with tiny shapes: every part runs, and none takes the others with it."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu_check
import policies
from gpu.headline import step_s_at
from gpu.peers import decode_seconds
from gpu.prefill import prefill_flop
from gpu.result import Result
from gpu.running import Part, supervise, work
from gpu.scale import FULL, TINY
from gpu.served import Bench

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Parts that raise, kill their process, hang, and succeed; run by a worker of their own, as the real ones are.
WORKER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
from gpu.result import Result
from gpu.running import work

def good(part): part.add(value=1)
def raises(part): part.add(value=2); raise RuntimeError("this part is broken")
def dies(part): part.add(value=3); os._exit(7)
def hangs(part): part.add(value=4); time.sleep(600)
def wrong(part): part.failure = "two checks are wrong"

parts = {{"raises": raises, "dies": dies, "hangs": hangs, "wrong": wrong, "good": good}}
sys.exit(work(Result.load(Path(sys.argv[1])), parts, dict.fromkeys(parts, 1.0) | {{"hangs": 0.2}}))
"""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one tiny run of all parts wrote."""
    path = tmp_path_factory.mktemp("gpu") / "result.json"
    code = gpu_check.main(["--tiny", "--device", "cpu", "--budget-seconds", "200", "--json", str(path)])
    found: dict[str, Any] = json.loads(path.read_text())
    assert code == 0, found
    return found


def test_every_part_runs_on_a_cpu(document: dict[str, Any]) -> None:
    assert {name: part["status"] for name, part in document["parts"].items()} == dict.fromkeys(
        gpu_check.WEIGHTS, "done"
    )


def test_machine_versions_settings_and_limits_are_written(document: dict[str, Any]) -> None:
    assert document["machine"]["versions"]["transformers"]
    assert document["device"]["type"] == "cpu"
    assert document["settings"]["budget_seconds"] == 200
    assert document["settings"]["shape"]["num_hidden_layers"] == 2
    assert min(document["limits"].values()) > 0


def test_the_headline_is_measured_in_both_loops_at_every_context(document: dict[str, Any]) -> None:
    headline = document["parts"]["headline"]
    assert [(row["loop"], row["context"]) for row in headline["rows"]] == [
        (loop, context) for loop in ("async", "sync") for context in sorted({r["context"] for r in headline["rows"]})
    ]
    assert [row["loop"] for row in headline["totals"]] == ["async", "sync"]
    assert all(row["p99 ms"] >= row["p50 ms"] > 0 and row["of floor %"] is not None for row in headline["rows"])


def test_numerics_compare_tokens_logits_and_kernels(document: dict[str, Any]) -> None:
    rows = document["parts"]["numerics"]["rows"]
    what = {row["what"] for row in rows if row["verdict"] == "ok"}
    assert {"sampled tokens, all modes", "logits, transformers on the CPU", "torch"} <= what
    assert not [row for row in rows if row["verdict"] == "WRONG"]


def test_transformers_stands_beside_us_and_says_how_it_ran(document: dict[str, Any]) -> None:
    peers = document["parts"]["peers"]
    assert {"transformers, sync", "jitney, async"} <= {row["engine"] for row in peers["rows"]}
    assert "use_async_batching=False" in peers["totals"][0]["how"]
    assert any("async" in note for note in peers["notes"]), "why its async loop did not run on a CPU"


def test_all_five_ways_serve_all_of_the_traffic(document: dict[str, Any]) -> None:
    totals = document["parts"]["traffic"]["totals"]
    assert len({row["way"] for row in totals}) == 5
    assert all(row["ended"] == f"{row['requests']} of {row['requests']}" for row in totals)


def test_traffic_that_outlasts_its_time_is_stopped_and_leaves_the_engine_idle() -> None:
    served = Bench(TINY, "cpu").served
    engine = served.engine(enable_prefix_caching=False)
    shapes = policies.traffic(5, 1000.0, engine.limits.vocab_size, 0, (8, 4, 24), (100, 90, 100))
    requests = policies.play(engine, shapes, "cut off", at_most_s=0.02)
    assert not engine.has_work
    assert sum(len(request.output_token_ids) for request in requests) < sum(shape.num_tokens for shape in shapes)
    served.close()


@pytest.mark.timeout(60)
def test_a_part_that_raises_dies_or_hangs_does_not_stop_the_others(tmp_path: Path) -> None:
    script, path = tmp_path / "worker.py", tmp_path / "result.json"
    script.write_text(WORKER.format(benchmarks=str(BENCHMARKS)))
    result = Result.new(path, {}, ["raises", "dies", "hangs", "wrong", "good"], budget_s=20.0)
    supervise(result, [sys.executable, str(script), str(path)], budget_s=20.0)
    parts = json.loads(path.read_text())["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {
        "raises": "failed",
        "dies": "failed",
        "hangs": "failed",
        "wrong": "failed",
        "good": "done",
    }
    assert [part["rows"] for part in parts.values()] == [
        [{"value": 2}],
        [{"value": 3}],
        [{"value": 4}],
        [],
        [{"value": 1}],
    ]
    assert "this part is broken" in parts["raises"]["error"] and "Traceback" in parts["raises"]["error"]
    assert "code 7" in parts["dies"]["error"]
    assert "killed" in parts["hangs"]["error"]


@pytest.mark.timeout(60)
def test_a_worker_that_cannot_even_start_fails_each_part_and_ends(tmp_path: Path) -> None:
    result = Result.new(tmp_path / "result.json", {}, ["one", "two"], budget_s=30.0)
    supervise(result, [sys.executable, "-c", "raise SystemExit(3)"], budget_s=30.0)
    assert result.with_status("failed") == ["one", "two"]


def test_a_part_gets_its_share_of_what_is_left(tmp_path: Path) -> None:
    budgets: dict[str, float] = {}

    def note(part: Part) -> None:
        budgets[part.name] = part.left_s

    result = Result.new(tmp_path / "result.json", {}, ["small", "large"], budget_s=100.0)
    work(result, {"small": note, "large": note}, {"small": 1.0, "large": 3.0})
    assert budgets["small"] == pytest.approx(25, abs=2)
    assert budgets["large"] == pytest.approx(100, abs=2), "what the first did not use goes to the second"


def test_rows_are_in_the_file_before_the_part_ends(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = Result.new(path, {}, ["one"], budget_s=10.0)
    result.start("one", 10.0)
    Part(result, "one", 10.0).add(value=5)
    kept = json.loads(path.read_text())["parts"]["one"]
    assert (kept["status"], kept["rows"]) == ("running", [{"value": 5}])


@pytest.mark.parametrize(("failed", "code"), [([], 0), (["peers"], 2), (["numerics", "peers"], 1)])
def test_wrong_numbers_show_in_the_exit_code(
    failed: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_all(result: Result, command: list[str], budget_s: float) -> None:
        for name in result.with_status("waiting"):
            result.end(name, "it failed" if name in failed else None)

    monkeypatch.setattr(gpu_check, "supervise", end_all)
    assert gpu_check.main(["--json", str(tmp_path / "result.json")]) == code


def test_a_step_between_two_points_lies_on_the_line_through_them() -> None:
    found = step_s_at(np.array([0.0, 150.0, 400.0]), [100.0, 200.0, 300.0], [1.0, 2.0, 4.0])
    assert found.tolist() == [0.0, 1.5, 6.0]


def test_only_tokens_made_while_all_requests_decode_count_for_transformers() -> None:
    early = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    late = [2.5, 3.0, 3.5, 4.0, 4.5, 9.0]
    assert decode_seconds([early, late]).tolist() == [0.5, 0.5]


def test_the_8b_shape_has_the_size_it_is_named_for() -> None:
    one_token = prefill_flop(FULL.shape, 1)
    without_embedding = 8.03e9 - FULL.shape["vocab_size"] * FULL.shape["hidden_size"]
    assert one_token / 2 == pytest.approx(without_embedding, rel=0.01)
