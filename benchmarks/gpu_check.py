"""Everything about a GPU in one run of about six minutes: is it right, how fast is it, and beside whom.

Parts, the most valuable first: `limits` (copy bandwidth, matrix rate), `headline` (32 x 8,192 tokens on an 8B shape,
sync and async), `numerics` (kernels and a small model against references), `peers` (transformers' continuous batching
on the same shape), `traffic` (mixed lengths, five ways to batch), `prefill`. Nothing is downloaded: weights are random.
Each part has its share of the time; one that fails or hangs is recorded and the next one runs.
"""

import argparse
import importlib
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import report
from gpu.result import FAILED, Result
from gpu.running import Part, supervise, work
from gpu.scale import FULL, TINY

WEIGHTS = {"limits": 0.05, "headline": 0.36, "numerics": 0.17, "peers": 0.17, "traffic": 0.2, "prefill": 0.05}
"""The parts in order, each with its share of the time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 if numbers are wrong or could not be checked; 2 if another part failed."""
    args = _parse(arguments)
    if args.worker is not None:
        return _work(args)
    with tempfile.TemporaryDirectory() as folder:
        path = args.json or Path(folder) / "result.json"
        parts = [name for name in WEIGHTS if name in args.parts or name == "limits"]
        scale = TINY if args.tiny else FULL
        settings = {"device": args.device, "tiny": args.tiny, "budget_seconds": args.budget_seconds} | asdict(scale)
        result = Result.new(path, settings, parts, args.budget_seconds)
        command = [sys.executable, __file__, "--worker", str(path), "--device", args.device]
        try:
            supervise(result, command + ["--tiny"] * args.tiny, args.budget_seconds)
        finally:
            result.reload()
            result.print()
        if args.json is not None:
            print(f"\nwritten to {path}")
    failed = result.with_status(FAILED)
    return 1 if "numerics" in failed else 2 if failed else 0


def _work(args: argparse.Namespace) -> int:
    from gpu.served import Bench

    bench = Bench(TINY if args.tiny else FULL, args.device)
    parts: dict[str, Callable[[Part], None]] = {name: partial(_measure, name, bench) for name in WEIGHTS}
    return work(Result.load(args.worker), parts, WEIGHTS)


def _measure(name: str, bench: object, part: Part) -> None:
    importlib.import_module(f"gpu.{name}").measure(bench, part)  # late: one that cannot be imported fails alone


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser((__doc__ or "").splitlines()[0])
    parser.add_argument("--budget-seconds", type=_seconds, default=360.0, help="time for all of it")
    parser.add_argument("--parts", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS), help="limits always runs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes and few steps, to try the code on a CPU")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
