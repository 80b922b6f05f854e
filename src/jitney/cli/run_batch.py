"""`jitney run-batch`: a file of requests in OpenAI's batch format in, a file of answers out."""

import argparse
import asyncio
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from jitney.cli.flags import add_engine_flags, add_model_flag, engine_config

if TYPE_CHECKING:
    from jitney.batch.run import BatchCounts

HELP = "Answer a file of requests in OpenAI's batch format."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"{HELP} Each answer is written as soon as it is finished, so the order of the lines may change; custom_id "
        "says which is which. A bad line gets an error for its answer and costs nothing else: the exit status is 0 "
        "once every line has an answer."
    )
    parser.add_argument("-i", "--input", type=Path, required=True, metavar="FILE", help="JSON lines to answer.")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="Where the answers go.")
    parser.add_argument("--overwrite", action="store_true", help="Replace an existing output file. (default: off)")
    add_model_flag(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    config = engine_config(args)
    from jitney.async_llm import AsyncLLM
    from jitney.batch.files import InputLines, OutputFile
    from jitney.batch.run import WINDOW_PER_SEAT, BatchRun

    lines = InputLines(args.input)
    with (
        OutputFile(args.output, overwrite=args.overwrite, input_path=args.input) as output,
        closing(AsyncLLM(args.model, config=config)) as llm,
        tqdm(total=len(lines), unit="line", file=sys.stderr) as bar,
    ):
        start = time.perf_counter()

        def show(counts: "BatchCounts") -> None:
            speed = counts.num_output_tokens / (time.perf_counter() - start)
            bar.set_postfix_str(f"{speed:.0f} tokens/s, {counts.num_failed} failed", refresh=False)
            bar.update()

        window = WINDOW_PER_SEAT * config.max_num_seqs
        batch = BatchRun(llm, output.write, model_name=args.model or "jitney", window=window, on_line=show)
        try:
            asyncio.run(batch.run(lines))
        finally:
            seconds = time.perf_counter() - start
            bar.close()
            print(summary(batch.counts, len(lines), seconds, args.output), file=sys.stderr)
    return 0


def summary(counts: "BatchCounts", total: int, seconds: float, path: Path) -> str:
    """One line: what was answered, what failed, how fast, and where it is."""
    num_good = counts.num_lines - counts.num_failed
    left = f", {total - counts.num_lines:,} not reached" if counts.num_lines < total else ""
    return (
        f"{num_good:,} answered, {counts.num_failed:,} failed{left}; {counts.num_prompt_tokens:,} prompt and "
        f"{counts.num_output_tokens:,} output tokens in {seconds:.1f} s "
        f"({counts.num_output_tokens / max(seconds, 1e-9):,.0f} tokens/s); answers in {path}"
    )
