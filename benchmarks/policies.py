"""Five ways to batch the same traffic, side by side: sequential, static, dynamic, continuous, asynchronous continuous.

Same engine, same model, same precision, same requests: prompts and outputs of log-normal lengths, arriving at random
(Poisson) faster than any way can serve them. `static` computes finished rows until their batch ends, as a padded
`generate` does; `dynamic` first waits for a window. Time to first token counts from arrival. All ways run in turn, in
rounds, so that a machine that slows down slows all of them.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

import report
from jitney import LLM, SamplingParams
from jitney.engine.limits import make_requests
from jitney.engine.loop import Engine
from jitney.engine.records import device_idle_share, slot_occupancy
from jitney.types import Request

WAYS: dict[str, dict[str, Any]] = {
    "sequential": {"batching_policy": "sequential", "async_scheduling": False},
    "static": {"batching_policy": "static", "async_scheduling": False},
    "dynamic": {"batching_policy": "dynamic", "async_scheduling": False},
    "continuous": {"batching_policy": "continuous", "async_scheduling": False},
    "async continuous": {"batching_policy": "continuous", "async_scheduling": True},
}


@dataclass(frozen=True)
class Shape:
    """One request of the traffic."""

    arrival_s: float
    prompt: list[int]
    num_tokens: int


def traffic(count: int, rate: float, vocab_size: int, seed: int) -> list[Shape]:
    """Prompts of median 48 tokens, outputs of median 32 (log-normal, at most 192): lengths vary as in chat."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    prompts = np.clip(random.lognormal(np.log(48), 0.8, count), 4, 384).astype(int)
    outputs = np.clip(random.lognormal(np.log(32), 0.8, count), 2, 192).astype(int)
    return [
        Shape(float(arrival - arrivals[0]), random.integers(100, vocab_size, length).tolist(), int(tokens))
        for arrival, length, tokens in zip(arrivals, prompts, outputs, strict=True)
    ]


def play(engine: Engine, shapes: list[Shape], name: str) -> list[Request]:
    """Send the traffic on schedule and step until all of it has been served."""
    requests: list[Request] = []
    start = engine.device.now()
    with tqdm(total=sum(shape.num_tokens for shape in shapes), desc=name, unit="tok", leave=False) as bar:
        while len(requests) < len(shapes) or engine.has_work:
            now = engine.device.now() - start
            while len(requests) < len(shapes) and shapes[len(requests)].arrival_s <= now:
                shape = shapes[len(requests)]
                params = SamplingParams(temperature=0.0, max_tokens=shape.num_tokens, ignore_eos=True)
                (request,) = make_requests(
                    f"{name}-{len(requests)}", shape.prompt, params, engine.limits, engine_seed=0
                )
                request.metrics.arrival_time = start + shape.arrival_s
                requests.append(request)
                engine.add(request)
            done = engine.records.num_steps
            if not engine.step():
                wake = [time for time in (engine.wake_time(),) if time is not None]
                wake += [start + shape.arrival_s for shape in shapes[len(requests) : len(requests) + 1]]
                engine.device.wait_until(min(wake))
            elif engine.records.num_steps > done:
                bar.update(int(engine.records.since(done)["num_new_tokens"].sum()))
    return requests


def measure(llm: LLM, shapes: list[Shape], name: str) -> dict[str, float]:
    engine = llm.engine
    first = engine.records.num_steps
    requests = play(engine, shapes, name)
    records = engine.records.since(first)
    arrivals = [request.metrics.arrival_time for request in requests]
    ends = [request.metrics.finished_time or 0.0 for request in requests]
    starts = [request.metrics.first_token_time or 0.0 for request in requests]
    assert all(request.error is None for request in requests)
    waits = np.array(starts) - np.array(arrivals)
    seconds = max(ends) - min(arrivals)
    return {
        "seconds": seconds,
        "tokens/s": sum(shape.num_tokens for shape in shapes) / seconds,
        "TTFT p50 s": float(np.percentile(waits, 50)),
        "TTFT p99 s": float(np.percentile(waits, 99)),
        "seats used %": 100 * slot_occupancy(records, engine.config.max_num_seqs),
        "device idle %": 100 * device_idle_share(records),
    }


def main() -> None:
    parser = report.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder, GGUF file or hub id (default: the embedded model)")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--seats", type=int, default=8, help="max_num_seqs")
    parser.add_argument("--rate", type=float, default=8.0, help="arrivals per second")
    parser.add_argument("--rounds", type=int, default=1, help="each way once per round; medians are shown")
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=list(WAYS),
        help="which to run; compared with static, else with the first",
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    engines: dict[str, LLM] = {}
    for name in args.ways:
        shared = {"max_num_seqs": args.seats, "max_model_len": 1024, "enable_prefix_caching": False}
        engines[name] = LLM(args.model, dtype=args.dtype, **shared, **WAYS[name])
    limits = engines[args.ways[0]].engine.limits
    shapes = traffic(args.requests, args.rate, limits.vocab_size, args.seed)
    for name, llm in engines.items():
        measure(llm, traffic(4, 100.0, limits.vocab_size, args.seed + 1), f"warm-up {name}")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in args.ways}
    for _ in range(args.rounds):
        for name, llm in engines.items():
            runs[name].append(measure(llm, shapes, name))
    medians = {
        name: {column: statistics.median(run[column] for run in found) for column in found[0]}
        for name, found in runs.items()
    }
    yardstick = "static" if "static" in args.ways else args.ways[0]
    rows = [
        {"way": name}
        | {column: round(value, 2) for column, value in columns.items()}
        | {f"x {yardstick}": round(columns["tokens/s"] / medians[yardstick]["tokens/s"], 2)}
        for name, columns in medians.items()
    ]
    for llm in engines.values():
        llm.close()
    settings = {key: value for key, value in vars(args).items() if key != "json"}
    settings["output_tokens"] = sum(shape.num_tokens for shape in shapes)
    report.finish("policies", settings, rows, args.json, runs=runs)


if __name__ == "__main__":
    main()
