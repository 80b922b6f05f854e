"""`jitney generate`: one prompt, its text streamed to the terminal."""

import argparse
import asyncio
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from jitney.cli.flags import add_engine_flags, add_model_flag, engine_config
from jitney.cli.sampling_flags import add_sampling_flags, sampling_params
from jitney.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from jitney.outputs import RequestOutput

HELP = "Generate text from one prompt, streamed to the terminal."

STDIN = "-"
NOT_HERE = ("seed", "logprobs", "prompt_logprobs")
"""`--seed` is the engine's, which decides every draw of a single request; logprobs have no place in plain text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"{HELP} The text goes to stdout, a line about its speed to stderr. A model with a chat template answers the "
        "prompt as a user's message; --raw continues it as it stands."
    )
    parser.add_argument(
        "prompt", nargs="?", help=f"The prompt. {STDIN}, or nothing while something is piped in: read it from stdin."
    )
    parser.add_argument("--file", type=Path, metavar="FILE", help="Read the prompt from a file. (default: none)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="Put the prompt into the model's chat template. (default: if the model has one)",
    )
    form.add_argument(
        "--raw", action="store_false", dest="chat", help="Continue the prompt as it stands. (default: off)"
    )
    parser.add_argument(
        "--timeline", type=Path, metavar="FILE", help="Write a trace for ui.perfetto.dev. (default: none)"
    )
    add_model_flag(parser)
    add_sampling_flags(parser, exclude=NOT_HERE)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    prompt = read_prompt(args.prompt, args.file)
    params = sampling_params(args, exclude=NOT_HERE)
    config = engine_config(args)
    from jitney.async_llm import AsyncLLM
    from jitney.cli.streaming import TextPrinter, print_stream, stats_line
    from jitney.engine.recording import recorded

    async def generate(llm: AsyncLLM) -> "RequestOutput":
        tokenizer = llm.get_tokenizer()
        has_template = tokenizer is not None and tokenizer.chat_template is not None
        if args.chat or (args.chat is None and has_template):
            outputs = llm.chat([{"role": "user", "content": prompt}], params, request_id="generate")
        else:
            outputs = llm.generate(prompt, params, request_id="generate")
        return await print_stream(outputs, printer)

    with closing(AsyncLLM(args.model, config=config)) as llm, recorded(llm.engine, args.timeline):
        printer = TextPrinter()
        try:
            output = asyncio.run(generate(llm))
        finally:
            printer.end()
        for choice in output.outputs[1:]:
            print(f"\n[{choice.index + 1} of {params.n}]\n{choice.text}")
        print(stats_line(output), file=sys.stderr)
    return 0


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from wherever it is. The line end that closes a file or a pipe is not part of it.

    Raises:
        RequestError: none is given, two are, it is empty, or it is not UTF-8.
        ConfigError: the file cannot be read.
    """
    if prompt is not None and file is not None:
        raise RequestError("give the prompt as an argument or with --file, not both", "prompt")
    if file is None and prompt is None and sys.stdin.isatty():
        raise RequestError("give a prompt: as an argument, with --file FILE, or through a pipe", "prompt")
    if file is None and prompt not in (None, STDIN):
        text = str(prompt)
    else:
        try:
            data = file.read_bytes() if file is not None else sys.stdin.buffer.read()
            text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise ConfigError(f"cannot read --file {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RequestError(f"the prompt is not UTF-8 text: {error}", "prompt") from error
    if not text:
        raise RequestError("the prompt is empty", "prompt")
    return text
