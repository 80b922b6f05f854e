"""transformers' continuous batching on the same shape in the same run: decode steps of the same prompts, beside ours.

Its asynchronous loop first, as its authors measured it, then its synchronous one. It chooses its attention itself: with
a flash attention package it has a decode path of its own, without one it falls back to SDPA over a mask: `how` says
which one ran. Settings that the installed version does not know are left out.
"""

import dataclasses
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from gpu.headline import NUM_FIRST_STEPS, Floats, run_point
from gpu.running import Part
from gpu.served import Bench

PAGE_SIZE = 256
SPARE_SHARE = 1.3
"""Blocks per block needed: its scheduler admits nobody when less than 15 % are free."""
Prompts = np.ndarray[Any, np.dtype[np.int32]]


def measure(bench: Bench, part: Part) -> None:
    scale = bench.scale
    random = np.random.default_rng(0)
    shape = (scale.num_requests, max(scale.peer_contexts))
    prompts = random.integers(3, scale.shape["vocab_size"], shape, dtype=np.int32)
    for index, context in enumerate(scale.peer_contexts):
        if part.left_s <= 0:
            part.note(f"no time for contexts from {context} on")
            break
        own = prompts[:, :context]
        theirs = {way: _peer(bench, part, own, way) for way in (("async", "sync") if index == 0 else ("async",))}
        ours = _ours(bench, part, own)
        for way, found in theirs.items():
            if found is not None and ours is not None:
                ratio = round(found[0] / ours, 2)
                part.total(context=context, transformers=way, **{"times Jitney's step": ratio}, how=found[1])
    if not part.result.part(part.name)["totals"]:
        part.failure = "nothing could be compared; the notes say why"


def _peer(bench: Bench, part: Part, prompts: Prompts, way: str) -> tuple[float, str] | None:
    """Mean seconds of a decode step of transformers and how it ran, or None with the reason in a note."""
    name = f"transformers, {way}"
    try:
        seconds, how = peer_steps(bench, prompts, way == "async", part.left_s)
    except Exception as error:  # whatever keeps it from running here is part of the answer
        part.note(f"{name} at {prompts.shape[1]}: {type(error).__name__}: {error}")
        return None
    mean = _keep(part, name, prompts, seconds)
    return None if mean is None else (mean, how)


def _ours(bench: Bench, part: Part, prompts: Prompts) -> float | None:
    num_requests, context = prompts.shape
    engine = bench.served.engine(max_num_seqs=num_requests, async_scheduling=True, max_steps_in_flight=2)
    point = run_point(engine, prompts, bench.scale.peer_steps, f"jitney at {context}", part.ends_at)
    return _keep(part, "jitney, async", prompts, np.empty(0) if point is None else point.step_s)


def _keep(part: Part, name: str, prompts: Prompts, seconds: Floats) -> float | None:
    num_requests, context = prompts.shape
    if len(seconds) == 0:
        part.note(f"{name} at {context}: no decode step within the time")
        return None
    mean, (p50, p99) = float(seconds.mean()), np.percentile(seconds, [50, 99])
    part.add(
        **{
            "engine": name,
            "prompt": context,
            "steps": len(seconds),
            "mean ms": round(mean * 1e3, 4),
            "p50 ms": round(float(p50) * 1e3, 4),
            "p99 ms": round(float(p99) * 1e3, 4),
            "tokens/s": round(num_requests / mean, 1),
        }
    )
    return mean


def peer_steps(bench: Bench, prompts: Prompts, is_async: bool, at_most_s: float) -> tuple[Floats, str]:
    """Seconds of each decode step with all requests running, and how transformers chose to run them."""
    scale = bench.scale
    pages = -(-(prompts.shape[1] + scale.peer_steps) // PAGE_SIZE) + 1
    wanted = {
        "page_size": PAGE_SIZE,
        "num_blocks": int(len(prompts) * pages * SPARE_SHARE) + 8,
        "max_batch_tokens": scale.max_num_batched_tokens,
        "max_requests_per_batch": len(prompts),
        "max_blocks_per_request": pages + pages % 2,
        "allow_block_sharing": False,
        "use_async_batching": is_async,
    }
    known = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    settings = ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})
    generation = GenerationConfig(max_new_tokens=scale.peer_steps, eos_token_id=-1, do_sample=False)
    model: Any = bench.model
    options = {"generation_config": generation, "continuous_batching_config": settings, "timeout": 10.0, "warmup": True}
    with model.continuous_batching_context_manager(
        **_accepted(model.continuous_batching_context_manager, options)
    ) as manager:
        how = _how(manager, model)
        stamps = _collect(manager, prompts, scale.peer_steps, time.monotonic() + at_most_s)
    return decode_seconds(stamps), how


def _accepted(function: Callable[..., object], options: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in options.items() if takes_all or name in parameters}


def _how(manager: Any, model: Any) -> str:
    settings = getattr(manager, "continuous_batching_config", None)
    names = ("use_async_batching", "use_cuda_graph", "max_blocks_per_request")
    chosen = [f"{name}={getattr(settings, name, '?')}" for name in names]
    return ", ".join([str(model.config._attn_implementation), *chosen])


def _collect(manager: Any, prompts: Prompts, num_steps: int, ends_at: float) -> list[list[float]]:
    """The time of each token of each request; no stamps of requests that were not done in time."""
    options = _accepted(manager.add_request, {"max_new_tokens": num_steps, "record_timestamps": True})
    waiting = {manager.add_request(prompt.tolist(), **options) for prompt in prompts}
    stamps = []
    while waiting:
        output = manager.get_result(timeout=0.5)
        if output is not None and output.is_finished():
            waiting.discard(output.request_id)
            if output.error is not None:
                raise RuntimeError(f"request {output.request_id} failed: {output.error}")
            stamps.append(list(output.timestamps))
        elif output is None and (time.monotonic() > ends_at or not manager.is_running()):
            break
    for request_id in waiting:
        manager.cancel_request(request_id)
    if waiting and not manager.is_running():
        raise RuntimeError("its generation thread ended; its log says why")
    return stamps if not waiting else []


def decode_seconds(stamps: Sequence[Sequence[float]]) -> Floats:
    """Time between tokens while all requests decode: from the last one's first token to the first one's last."""
    if not stamps:
        return np.empty(0)
    latest = max(stamps, key=lambda times: times[0])
    end = min(times[-1] for times in stamps)
    return np.diff([time for time in latest if time <= end])[NUM_FIRST_STEPS:]
