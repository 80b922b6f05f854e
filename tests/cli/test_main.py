import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

import jitney
from jitney.cli import main as cli
from jitney.errors import ConfigError, EngineDeadError, JitneyError, ModelLoadError, RequestError

Body = Callable[[argparse.Namespace], int]


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], int]:
    """Runs `jitney try` with the given body."""

    def run(body: Body) -> int:
        module = SimpleNamespace(HELP="A command for tests.", add_arguments=lambda parser: None, run=body)
        monkeypatch.setitem(sys.modules, "command_for_tests", module)
        monkeypatch.setattr(cli, "COMMANDS", {"try": "command_for_tests"})
        return cli.main(["try"])

    return run


def raising(error: BaseException) -> Body:
    def body(args: argparse.Namespace) -> int:
        raise error

    return body


def test_the_commands_status_is_the_exit_status(run_command: Callable[[Body], int]) -> None:
    assert run_command(lambda args: 0) == 0
    assert run_command(lambda args: 3) == 3


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("block_size=0 is wrong"), 2),
        (RequestError("top_p=2 is out of range", "top_p"), 2),
        (ModelLoadError("no such folder"), 1),
        (EngineDeadError("the engine has stopped"), 1),
    ],
)
def test_an_expected_error_is_one_line_on_stderr(
    error: JitneyError, status: int, run_command: Callable[[Body], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(raising(error)) == status
    assert capsys.readouterr() == ("", f"jitney: error: {error}\n")


def test_an_unexpected_error_keeps_its_traceback(run_command: Callable[[Body], int]) -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(raising(ZeroDivisionError()))


def test_ctrl_c_ends_with_130_and_no_traceback(
    run_command: Callable[[Body], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(raising(KeyboardInterrupt())) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", PRINTS_A_LOT], stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full disk to offer")
@pytest.mark.parametrize(
    ("redirection", "status", "error"),
    [(">/dev/full", 1, "No space left on device"), (">&-", 2, "standard output is closed")],
)
def test_a_stdout_that_takes_nothing_is_one_line_on_stderr(redirection: str, status: int, error: str) -> None:
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, PRINTS_A_LOT]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == status
    assert error in done.stderr and done.stderr.count("\n") == 1


PRINTS_A_LOT = """
import sys
from types import SimpleNamespace
from jitney.cli import main as cli
def run(args):
    print("one line")
    return 0
sys.modules["command_for_tests"] = SimpleNamespace(HELP="", add_arguments=lambda parser: None, run=run)
cli.COMMANDS = {"try": "command_for_tests"}
sys.exit(cli.main(["try"]))
"""


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"jitney {jitney.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["no-such-command"]])
def test_wrong_usage_exits_with_2_and_shows_the_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(argv)
    assert exit.value.code == 2
    assert "usage: jitney" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main([name, "--help"])
    assert exit.value.code == 0
    assert f"usage: jitney {name}" in capsys.readouterr().out


def test_help_answers_without_loading_torch() -> None:
    check = "import sys; from jitney.cli.main import build_parser; build_parser(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_one_line_that_says_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--device", "cuda", "--model", "no/such-model", "hi"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("jitney: error: device='cuda' needs a GPU: torch ")
    assert "set device to 'cpu' or 'auto'" in err
