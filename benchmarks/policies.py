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


Lengths = tuple[float, int, int]
"""Median, least and most of a log-normal length, in tokens."""
PROMPTS: Lengths = (48, 4, 384)
OUTPUTS: Lengths = (32, 2, 192)
SPREAD = 0.8


@dataclass(frozen=True)
class Shape:
    """One request of the traffic."""

    arrival_s: float
    prompt: list[int]
    num_tokens: int


def traffic(
    count: int, rate: float, vocab_size: int, seed: int, prompts: Lengths = PROMPTS, outputs: Lengths = OUTPUTS
) -> list[Shape]:
    """`count` requests, `rate` of them a second, with random tokens: lengths vary as in chat."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, count))
    prompt_lens, output_lens = (_lengths(random, count, lengths) for lengths in (prompts, outputs))
    first = min(100, vocab_size // 2)
    return [
        Shape(float(arrival - arrivals[0]), random.integers(first, vocab_size, length).tolist(), int(tokens))
        for arrival, length, tokens in zip(arrivals, prompt_lens, output_lens, strict=True)
    ]


def _lengths(random: np.random.Generator, count: int, lengths: Lengths) -> np.ndarray[Any, np.dtype[np.int64]]:
    median, least, most = lengths
    return np.clip(random.lognormal(np.log(median), SPREAD, count), least, most).astype(np.int64)


def play(engine: Engine, shapes: list[Shape], name: str, at_most_s: float = float("inf")) -> list[Request]:
    """Send the traffic on schedule and step until all of it has been served, or the time is over: then what runs ends
    as it is, and the rest is not sent."""
    requests: list[Request] = []
    start = engine.device.now()
    with tqdm(total=sum(shape.num_tokens for shape in shapes), desc=name, unit="tok", leave=False, disable=None) as bar:
        while len(requests) < len(shapes) or engine.has_work:
            now = engine.device.now() - start
            if now > at_most_s:
                engine.abort_all()
                shapes = shapes[: len(requests)]
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
    first = llm.engine.records.num_steps
    return figures(llm.engine, first, play(llm.engine, shapes, name))


def figures(engine: Engine, first: int, requests: list[Request]) -> dict[str, float]:
    """What the requests of `play` saw, and what the engine did from its step number `first` on."""
    records = engine.records.since(first)
    assert all(request.error is None for request in requests)
    metrics = [request.metrics for request in requests]
    waits = [m.first_token_time - m.arrival_time for m in metrics if m.first_token_time is not None]
    seconds = max(m.finished_time or 0.0 for m in metrics) - min(m.arrival_time for m in metrics)
    return {
        "seconds": seconds,
        "tokens/s": sum(len(request.output_token_ids) for request in requests) / seconds,
        "TTFT p50 s": float(np.percentile(waits, 50)),
        "TTFT p99 s": float(np.percentile(waits, 99)),
        "seats used %": 100 * slot_occupancy(records, engine.config.max_num_seqs),
        "device idle %": 100 * device_idle_share(records),
    }


def main() -> None:
    parser = report.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder, GGUF file or hub id (default: the embedded model)")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--seats", type=int, default=8, help="max_num_seqs")
    parser.add_argument("--rate", type=float, default=60.0, help="arrivals per second")
    parser.add_argument("--rounds", type=int, default=1, help="each way once per round; medians are shown")
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=list(WAYS),
        help="which to run; compared with static, else with the first",
    )
    parser.add_argument("--dtype", default="auto")
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
