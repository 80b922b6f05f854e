"""The `jitney` command: finds the sub-command and turns what goes wrong into one clear line and an exit status.

Each sub-command is one file with `HELP`, `add_arguments(parser)` and `run(args) -> exit status`; it imports what is
slow to import inside `run`, so that `jitney --help` answers at once.

Exit status: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted (Ctrl-C), 141 the reader of a pipe went away.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from jitney import __version__
from jitney.errors import ConfigError, JitneyError, RequestError

COMMANDS = {
    "generate": "jitney.cli.generate",
    "chat": "jitney.cli.chat",
    "run-batch": "jitney.cli.run_batch",
    "demo": "jitney.cli.demo",
    "pull": "jitney.cli.pull",
}

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's own) and return its exit status."""
    try:
        args = build_parser().parse_args(argv)
        if sys.stdout is None:  # what Python makes of `>&-`
            raise ConfigError("standard output is closed; send it to a file, a pipe or /dev/null")
        status: int = args.run(args)
        sys.stdout.flush()  # a reader that went away must be noticed here, not in the interpreter's shutdown
        return status
    except JitneyError as error:
        print(f"jitney: error: {error}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, ConfigError | RequestError) else FAILED
    except KeyboardInterrupt:
        print("jitney: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:  # of the commands' own files and of stdout: a full disk, say
        print(f"jitney: error: {error}", file=sys.stderr)
        _silence_stdout()
        return FAILED


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jitney", description="An LLM inference engine with asynchronous continuous batching."
    )
    parser.add_argument("--version", action="version", version=f"jitney {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module_name in COMMANDS.items():
        module = import_module(module_name)
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _silence_stdout() -> None:
    """Let what is still buffered go nowhere: flushing it at exit would raise again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
