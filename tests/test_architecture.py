"""The pages that explain the code may only name files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_path_in_the_architecture_page_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|tests)/[\w/]+\.py)`", text)
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    folders = [f"src/jitney/{name}" for name in re.findall(r"`(\w+)/`", text)]
    assert len(folders) >= 9
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_every_path_in_the_gpu_page_exists() -> None:
    text = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|tests|benchmarks)/[\w/.]+)`", text)
    assert len(paths) > 12
    assert [path for path in paths if not (ROOT / path).exists()] == []
