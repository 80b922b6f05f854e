"""`jitney demo`: the same real prompts through sync static and async continuous batching, side by side."""

import argparse
import os
from pathlib import Path

from jitney.cli.flags import add_model_flag
from jitney.errors import ConfigError

HELP = "Run real prompts through static and continuous batching, side by side."

DEFAULT_FOLDER = Path("out/demo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{HELP} Writes the outputs, the numbers and a trace of each run into a folder."
    parser.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_FOLDER,
        metavar="FOLDER",
        help=f"Where the files go; those of an earlier demo are replaced. (default: {DEFAULT_FOLDER})",
    )
    parser.add_argument(
        "--num-requests", type=int, metavar="N", help="Send only the first N prompts. (default: all of them)"
    )
    add_model_flag(parser)


def run(args: argparse.Namespace) -> int:
    if args.num_requests is not None and args.num_requests < 1:
        raise ConfigError(f"--num-requests must be at least 1, got {args.num_requests}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create the folder --out {args.out}: {error.strerror}") from error
    from jitney.demo import report
    from jitney.demo.comparison import CONTINUOUS, NUM_SEATS, STATIC, run_way
    from jitney.demo.prompts import demo_requests

    requests = demo_requests()[: args.num_requests]
    total = sum(request.num_tokens for request in requests)
    print(f"{len(requests)} requests, {total:,} tokens to generate, {NUM_SEATS} seats, all requests sent at once.")
    runs = []
    for number, way in enumerate((STATIC, CONTINUOUS), 1):
        print(f"\n{number}/2  {way.name}: loading, warming up, running", flush=True)
        timeline = args.out / f"{way.name.replace(' ', '-')}.trace.json"
        runs.append(run_way(way, args.model, requests, timeline))
    static, continuous = runs
    report.write_outputs(args.out / "outputs.jsonl", requests, runs)
    report.write_summary(args.out / "summary.json", args.model or "SmolLM2-135M-Instruct (embedded)", runs)
    print("\n" + report.result_table([static.measurement, continuous.measurement]))
    print("\n" + report.ratio_line(static.measurement, continuous.measurement))
    print(report.equality_line(static, continuous))
    print("\n" + report.explanation(os.environ))
    print("\nSome of the outputs, each as long as its request asked for:\n")
    print(report.samples(requests, continuous.answers))
    if args.model is None:
        print("\n" + report.SMALL_MODEL)
    print(f"\nAll outputs: {args.out / 'outputs.jsonl'}; numbers: {args.out / 'summary.json'}")
    print(f"Open {args.out}/*.trace.json in https://ui.perfetto.dev to see every seat at every step.")
    return 0
