"""The CPU device on the demo's requests: torch against native kernels, float32 against bfloat16, sync against async.

All ways run in turn, in rounds. Each takes the same steps with the same rows, so steps are compared one by one: a step
counts with the least time it took in any round, which leaves out what else the machine was doing. What asynchronous
batching can win on a CPU is the host's time between two steps; what it can lose is cores, which host and device share.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import report
from jitney import LLM, SamplingParams
from jitney.demo.prompts import DemoRequest, demo_requests
from jitney.engine.records import device_idle_share

WAYS: dict[str, dict[str, Any]] = {
    "torch float32, sync": {"cpu_kernels": "torch", "dtype": "float32", "async_scheduling": False},
    "torch float32, async": {"cpu_kernels": "torch", "dtype": "float32"},
    "native float32, async": {"cpu_kernels": "native", "dtype": "float32"},
    "native bfloat16, sync": {"cpu_kernels": "native", "dtype": "bfloat16", "async_scheduling": False},
    "native bfloat16, async": {"cpu_kernels": "native", "dtype": "bfloat16"},
}
WARM_UP = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def step_seconds(llm: LLM, requests: list[DemoRequest]) -> tuple[NDArray[np.float64], float]:
    """One run: seconds from the end of each step to the end of the next, and the share that the device idled."""
    first = llm.engine.records.num_steps
    conversations = [[{"role": "user", "content": request.prompt}] for request in requests]
    start = llm.engine.device.now()
    for output in llm.chat(conversations, [request.params for request in requests], use_tqdm=False):
        if output.error is not None:
            raise SystemExit(str(output.error))
    records = llm.engine.records.since(first)
    return np.diff(records["collect_end"], prepend=start), device_idle_share(records)


def main() -> None:
    parser = report.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seats", type=int, default=16)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help="; ".join(WAYS))
    args = parser.parse_args()
    requests = demo_requests()
    # without prefix cache, so that every round does the same work
    llms = {way: LLM(max_num_seqs=args.seats, enable_prefix_caching=False, **WAYS[way]) for way in args.ways}
    seconds: dict[str, list[NDArray[np.float64]]] = {way: [] for way in llms}
    idle: dict[str, list[float]] = {way: [] for way in llms}
    for llm in llms.values():
        llm.generate(["Warm up."] * args.seats, WARM_UP, use_tqdm=False)
    with tqdm(total=args.rounds * len(llms), unit="run") as bar:
        for turn in range(args.rounds):
            for way in llms if turn % 2 == 0 else reversed(llms):
                bar.set_description(way)
                times, share = step_seconds(llms[way], requests)
                seconds[way].append(times)
                idle[way].append(share)
                bar.update()
    num_tokens = sum(request.num_tokens for request in requests)
    rows = [_row(way, num_tokens, seconds[way], idle[way]) for way in llms]
    for row in rows:
        row["x the first"] = row["tokens/s"] / rows[0]["tokens/s"]
    report.finish("cpu", {"requests": len(requests), "seats": args.seats, "rounds": args.rounds}, rows, args.json)


def _row(way: str, num_tokens: int, runs: list[NDArray[np.float64]], idle: list[float]) -> dict[str, Any]:
    least = np.min(runs, axis=0)
    return {
        "way": way,
        "steps": len(least),
        "tokens/s": num_tokens / float(least.sum()),
        "ms a step": 1e3 * float(np.median(least)),
        "device idle %": 100 * float(np.median(idle)),
    }


if __name__ == "__main__":
    main()
