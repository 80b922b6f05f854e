"""`jitney chat`: a conversation in the terminal."""

import argparse
import asyncio
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from jitney.cli.flags import add_engine_flags, add_model_flag, engine_config
from jitney.cli.sampling_flags import add_sampling_flags, sampling_params
from jitney.errors import RequestError

if TYPE_CHECKING:
    from jitney.async_llm import AsyncLLM
    from jitney.sampling_params import SamplingParams

HELP = "Talk with a model in the terminal."

COMMANDS = """\
/reset         forget the conversation
/system TEXT   set the system message and forget the conversation; no TEXT: the model's own
/help          show this
/exit          leave (or Ctrl-D)
Ctrl-C stops an answer; what was said so far stays in the conversation."""
NOT_HERE = ("n", "seed", "logprobs", "prompt_logprobs")
"""One answer at a time, plain text; `--seed` is the engine's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"{HELP} Commands inside: /reset, /system TEXT, /help, /exit. Ctrl-C stops an answer."
    parser.add_argument("--system", metavar="TEXT", help="The system message. (default: the model's own)")
    add_model_flag(parser)
    add_sampling_flags(parser, exclude=NOT_HERE)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args, exclude=NOT_HERE)
    config = engine_config(args)
    from jitney.async_llm import AsyncLLM

    with closing(AsyncLLM(args.model, config=config)) as llm:
        tokenizer = llm.get_tokenizer()
        if tokenizer is None or tokenizer.chat_template is None:
            raise RequestError("this model has no chat template; use `jitney generate --raw`", "messages")
        if sys.stdin.isatty():
            print("Type a message, or /help.", file=sys.stderr)
        Conversation(llm, params, args.system).talk()
    return 0


class Conversation:
    """The messages so far, and the loop that asks for more."""

    def __init__(self, llm: "AsyncLLM", params: "SamplingParams", system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._turns: list[dict[str, str]] = []

    def talk(self) -> None:
        """Read and answer until /exit or the end of the input."""
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() line editing and a history
        prompt = "> " if sys.stdin.isatty() else ""
        while True:
            try:
                line = input(prompt).strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                print("\n(Ctrl-D or /exit to leave)", file=sys.stderr)
                continue
            if line == "/exit":
                return
            if line.startswith("/"):
                self._obey(line)
            elif line:
                self._answer(line)

    def _obey(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        if command == "/reset":
            self._turns.clear()
        elif command == "/system":
            self._system = rest.strip() or None
            self._turns.clear()
        elif command == "/help":
            print(COMMANDS, file=sys.stderr)
        else:
            print(f"unknown command {command}\n{COMMANDS}", file=sys.stderr)

    def _answer(self, line: str) -> None:
        from jitney.cli.streaming import TextPrinter, print_stream

        system = [{"role": "system", "content": self._system}] if self._system is not None else []
        question = {"role": "user", "content": line}
        printer = TextPrinter()

        async def answer() -> None:
            await print_stream(self._llm.chat([*system, *self._turns, question], self._params), printer)

        try:
            asyncio.run(answer())
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except RequestError as error:
            print(f"error: {error}\n(/reset forgets the conversation so far)", file=sys.stderr)
            return
        finally:
            printer.end()
        if printer.text:  # a turn stopped before its first word never was
            self._turns += [question, {"role": "assistant", "content": printer.text}]
