"""The headline workload: 32 requests, 256 random prompt tokens, 8,192 new tokens, an 8B model; sync and async.

The whole run takes minutes, so decode steps are measured at evenly spaced context lengths, and the run's time is the
first prefill plus the integral of the time of a step over the context. Each point's prompts begin with those of
the one before, so that the prefix cache spares most of their prefill. Hugging Face published 300.6 s (synchronous) and
234.5 s (asynchronous) for such a workload on a GPU that it does not name.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from gpu.limits import limit
from gpu.running import Part
from gpu.scale import LLAMA_3_1_8B, Scale
from gpu.served import Bench, floor_bytes
from jitney.engine.limits import make_requests
from jitney.engine.loop import Engine
from jitney.engine.records import device_idle_share, host_seconds
from jitney.sampling_params import SamplingParams

PUBLISHED_S = {"async": 234.5, "sync": 300.6}
NUM_FIRST_STEPS = 2
"""Decode steps of a point that are left out: they follow the prefill."""
Records = np.ndarray[tuple[int], np.dtype[np.void]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Point:
    """Decode steps of all requests, one after the other, at about one context length."""

    context: float
    """Mean tokens of one request in the cache."""
    steps: Records
    prefill_s: float
    """From the start of the first step to the end of the last one with prompt tokens."""

    @property
    def step_s(self) -> Floats:
        """Seconds from the end of one step on the device to the end of the next: what a token costs."""
        return np.diff(self.steps["device_end"])


def measure(bench: Bench, part: Part) -> None:
    served = bench.served
    part.note(f"model, memory and graphs were ready and warm in {bench.build_s:.1f} s")
    ways = ("async", "sync")
    for index, way in enumerate(ways):
        engine = served.engine(
            max_num_seqs=bench.scale.num_requests, async_scheduling=way == "async", max_steps_in_flight=2
        )
        ends_at = time.monotonic() + part.left_s / (len(ways) - index)
        points = _points(bench, part, engine, way, ends_at)
        if points:
            part.total(**_total(bench, part, way, points))
    if not part.result.part(part.name)["rows"]:
        raise TimeoutError("no time was left for a single decode step")


def _points(bench: Bench, part: Part, engine: Engine, way: str, ends_at: float) -> list[Point]:
    scale = bench.scale
    starts = start_lengths(scale)
    random = np.random.default_rng(0)
    prompts = random.integers(3, engine.limits.vocab_size, (scale.num_requests, starts[-1]), dtype=np.int32)
    points: list[Point] = []
    for start in starts:
        if time.monotonic() > ends_at:
            part.note(f"{way}: no time for contexts from {start} on; the line through the others is drawn on")
            break
        name = f"{way} at {start}"
        point = run_point(engine, prompts[:, :start], scale.steps_per_point, name, ends_at)
        if point is not None:
            points.append(point)
            part.add(**_row(bench, part, way, point))
    return points


def start_lengths(scale: Scale) -> list[int]:
    """Prompt lengths: the first decodes from the workload's first token on, the last up to its last one."""
    last = scale.prompt_len + scale.num_new_tokens - scale.steps_per_point
    return [int(length) for length in np.linspace(scale.prompt_len, last, scale.num_points)]


def run_point(
    engine: Engine, prompts: np.ndarray[Any, Any], num_steps: int, name: str, ends_at: float = float("inf")
) -> Point | None:
    """Prefill [requests, length] `prompts`, then decode; None if the time ends before two steps are measured."""
    params = SamplingParams(temperature=0.0, max_tokens=num_steps, ignore_eos=True)
    first = engine.records.num_steps
    for index, prompt in enumerate(prompts):
        engine.add(*make_requests(f"{name} {index}", prompt, params, engine.limits, engine_seed=0))
    with tqdm(total=num_steps, desc=name, unit="step", leave=False, disable=None) as bar:
        while engine.has_work:
            engine.step_or_wait()
            bar.update()
            if time.monotonic() > ends_at:
                engine.abort_all()
    return _point(engine.records.since(first), *prompts.shape)


def _point(records: Records, num_requests: int, length: int) -> Point | None:
    prefills = np.flatnonzero(records["num_prompt_tokens"])
    is_full = (records["num_decode_rows"] == num_requests) & (records["num_prompt_tokens"] == 0)
    chosen = np.flatnonzero(is_full)[NUM_FIRST_STEPS:]
    if len(chosen) < 2 or len(prefills) == 0:
        return None
    generated = np.cumsum(records["num_new_tokens"])[chosen] / num_requests
    start, end = records["device_start"][0], records["device_end"][prefills[-1]]
    return Point(length + float(generated.mean()), records[chosen], float(end - start))


def _row(bench: Bench, part: Part, way: str, point: Point) -> dict[str, Any]:
    seconds = point.step_s
    p50, p99 = np.percentile(seconds, [50, 99])
    floor = _floor_s(bench, part, np.array([point.context]))
    return {
        "loop": way,
        "context": round(point.context),
        "steps": len(point.steps),
        "mean ms": round(float(seconds.mean()) * 1e3, 4),
        "p50 ms": round(float(p50) * 1e3, 4),
        "p99 ms": round(float(p99) * 1e3, 4),
        "host ms": round(float(np.median(host_seconds(point.steps))) * 1e3, 4),
        "device idle %": round(100 * device_idle_share(point.steps), 3),
        "floor ms": None if floor is None else round(float(floor[0]) * 1e3, 4),
        "of floor %": None if floor is None else round(100 * float(floor[0] / seconds.mean()), 1),
        "prefill s": round(point.prefill_s, 3),
    }


def _total(bench: Bench, part: Part, way: str, points: Sequence[Point]) -> dict[str, Any]:
    scale = bench.scale
    contexts = np.arange(scale.prompt_len, scale.prompt_len + scale.num_new_tokens, dtype=np.float64)
    steps = step_s_at(contexts, [point.context for point in points], [float(p.step_s.mean()) for p in points])
    total = points[0].prefill_s + float(steps.sum())
    floor = _floor_s(bench, part, contexts)
    every = np.concatenate([point.step_s for point in points])
    idle = [device_idle_share(point.steps) for point in points]
    return {
        "loop": way,
        "whole run s": round(total, 2),
        "published s": PUBLISHED_S[way] if scale.shape is LLAMA_3_1_8B else None,
        "tokens/s": round(scale.num_requests * scale.num_new_tokens / total, 1),
        "p50 ms": round(float(np.percentile(every, 50)) * 1e3, 4),
        "p99 ms": round(float(np.percentile(every, 99)) * 1e3, 4),
        "device idle %": round(100 * float(np.mean(idle)), 3),
        "floor s": None if floor is None else round(float(floor.sum()), 2),
        "of floor %": None if floor is None else round(100 * float(floor.sum()) / total, 1),
        "measured to": round(points[-1].context),
    }


def step_s_at(contexts: Floats, known: Sequence[float], seconds: Sequence[float]) -> Floats:
    """The time of a step at each context: straight lines between the known points, the outer ones drawn on."""
    x, y = np.asarray(known, np.float64), np.asarray(seconds, np.float64)
    result = np.interp(contexts, x, y)
    if len(x) > 1:
        below, above = contexts < x[0], contexts > x[-1]
        result[below] = y[0] + (contexts[below] - x[0]) * (y[1] - y[0]) / (x[1] - x[0])
        result[above] = y[-1] + (contexts[above] - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2])
    return np.asarray(result, np.float64)


def _floor_s(bench: Bench, part: Part, contexts: Floats) -> Floats | None:
    """Seconds to move a step's weights and KV at the measured copy rate."""
    rate = limit(part, "copy_bytes_per_s")
    if rate is None:
        return None
    weights, kv = floor_bytes(bench.model)
    return np.asarray((weights + bench.scale.num_requests * contexts * kv) / rate, np.float64)
