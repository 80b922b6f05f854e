from pathlib import Path

import pytest

from jitney.cli import main as cli
from jitney.models import embedded
from jitney.models.embedded import PackagedModel


@pytest.fixture
def cached_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = PackagedModel("no-such-package==1", "no_such_package", "model.gguf", num_bytes=3, sha256="")
    monkeypatch.setattr(embedded, "EMBEDDED_MODEL", model)
    monkeypatch.setattr("jitney.cli.pull.EMBEDDED_MODEL", model)
    monkeypatch.setenv("JITNEY_CACHE", str(tmp_path))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"abc")
    return path


def test_pull_prints_only_the_path_on_stdout(cached_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{cached_model}\n"
    assert "already here" in err
