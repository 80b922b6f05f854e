import json
from itertools import pairwise
from pathlib import Path

from jitney.engine.timeline import Timeline

from .toy_engine import toy_engine, toy_request


def test_the_timeline_has_a_lane_for_host_device_and_each_slot(tmp_path: Path) -> None:
    engine = toy_engine(max_num_seqs=2, batching_policy="static", host_cost_s=0.001)
    engine.timeline = Timeline(engine.records)
    engine.add(
        toy_request(engine.limits, "short", [1], max_tokens=2, ignore_eos=True),
        toy_request(engine.limits, "長い", [1], max_tokens=6, ignore_eos=True),
    )
    engine.run_until_idle()
    engine.timeline.write(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert lanes == {"host: loop", "device: steps", "seats: seat 0", "seats: seat 1"}
    kinds = [(event["tid"], event["args"]["kind"]) for event in events if event["pid"] == 3 and event["ph"] == "X"]
    assert kinds.count((0, "prefill")) == 1 and kinds.count((0, "decode")) == 1
    assert kinds.count((0, "wasted")) >= 3, "the short one's seat is computed in vain until the batch ends"
    assert kinds.count((1, "decode")) == 5


def test_device_steps_do_not_overlap_and_the_host_plans_ahead_of_them() -> None:
    engine = toy_engine(async_scheduling=True, host_cost_s=0.001)
    engine.timeline = Timeline(engine.records)
    engine.add(toy_request(engine.limits, "0", [1], max_tokens=10, ignore_eos=True))
    engine.run_until_idle()
    steps = [event for event in engine.timeline.events() if event["pid"] == 2 and event["ph"] == "X"]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 0.001 for a, b in pairwise(steps))
    plans = {e["args"]["step"]: e["ts"] for e in engine.timeline.events() if e["pid"] == 1 and e["name"] == "plan"}
    ahead = [plans[step["args"]["step"]] < step["ts"] - 0.004e6 for step in steps[2:]]
    assert all(ahead), "each step is planned while the one before it runs"
