"""Synchronous against asynchronous continuous batching on the CPU device: the demo's requests, in turn, in rounds.

Both loops take the same steps with the same rows, so steps are compared one by one: each step counts with the least
time it took in any round, which leaves out what else the machine was doing. What asynchronous batching can win on a
CPU is the host's time between two steps; what it can lose is the interpreter's lock, which the device thread shares.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import report
from jitney import LLM, SamplingParams
from jitney.demo.prompts import DemoRequest, demo_requests
from jitney.engine.records import device_idle_share

WAYS = {"sync": False, "async": True}
WARM_UP = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def _load(seats: int, is_async: bool) -> LLM:
    """Without prefix cache, so that every round does the same work."""
    return LLM(max_num_seqs=seats, async_scheduling=is_async, enable_prefix_caching=False)


def step_seconds(llm: LLM, requests: list[DemoRequest], way: str) -> tuple[NDArray[np.float64], float]:
    """One run: seconds from the end of each step to the end of the next, and the share that the device idled."""
    first = llm.engine.records.num_steps
    conversations = [[{"role": "user", "content": request.prompt}] for request in requests]
    start = llm.engine.device.now()
    for output in llm.chat(conversations, [request.params for request in requests], use_tqdm=False):
        if output.error is not None:
            raise SystemExit(f"{way}: {output.error}")
    records = llm.engine.records.since(first)
    return np.diff(records["collect_end"], prepend=start), device_idle_share(records)


def main() -> None:
    parser = report.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seats", type=int, default=16)
    args = parser.parse_args()
    requests = demo_requests()
    llms = {way: _load(args.seats, is_async) for way, is_async in WAYS.items()}
    seconds: dict[str, list[NDArray[np.float64]]] = {way: [] for way in WAYS}
    idle: dict[str, list[float]] = {way: [] for way in WAYS}
    for llm in llms.values():
        llm.generate(["Warm up."] * args.seats, WARM_UP, use_tqdm=False)
    for turn in tqdm(range(args.rounds), desc="rounds"):
        for way in WAYS if turn % 2 == 0 else reversed(WAYS):
            times, share = step_seconds(llms[way], requests, way)
            seconds[way].append(times)
            idle[way].append(share)
    rows = [_row(way, requests, seconds[way], idle[way]) for way in WAYS]
    rows[1]["against sync"] = rows[1]["tokens/s"] / rows[0]["tokens/s"]
    settings = {"requests": len(requests), "seats": args.seats, "rounds": args.rounds}
    report.finish("async_on_cpu", settings, rows, args.json)


def _row(way: str, requests: list[DemoRequest], runs: list[NDArray[np.float64]], idle: list[float]) -> dict[str, Any]:
    least = np.min(runs, axis=0)
    return {
        "loop": way,
        "steps": len(least),
        "tokens/s": sum(request.num_tokens for request in requests) / float(least.sum()),
        "device idle %": 100 * float(np.median(idle)),
        "against sync": 1.0,
    }


if __name__ == "__main__":
    main()
