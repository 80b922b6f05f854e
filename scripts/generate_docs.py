"""Writes the docs that are derived from the code: docs/settings.md from EngineConfig. `--check` only compares."""

import argparse
import sys
from pathlib import Path

from jitney.cli.flags import AUTO, EngineSetting, engine_settings

SETTINGS_PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

HEADER = f"""# Engine settings

Every setting is a field of `jitney.EngineConfig`, a keyword of `jitney.LLM` and `jitney.AsyncLLM`, and a flag of each
command that runs an engine. A switch also has a `--no-` form. `{AUTO}` is `None` in Python: the engine decides.

This page is written by `make docs` from `src/jitney/config.py`; change it there.

| Setting | Flag | Values | Default | Meaning |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """The text of docs/settings.md."""
    return HEADER + "".join(_row(setting) for setting in engine_settings())


def _row(setting: EngineSetting) -> str:
    if setting.type is bool:
        values = "on, off"
    elif setting.choices:
        values = ", ".join(f"`{choice}`" for choice in setting.choices)
    else:
        values = {int: "integer", float: "number", str: "text"}[setting.type]
        values += f" or `{AUTO}`" if setting.is_optional else ""
    help = setting.help.replace("|", "\\|")
    return f"| `{setting.name}` | `{setting.flag}` | {values} | `{setting.default_text}` | {help} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page differs from the code; write nothing")
    text = settings_page()
    if not parser.parse_args().check:
        SETTINGS_PAGE.write_text(text, encoding="utf-8")
        return 0
    if SETTINGS_PAGE.is_file() and SETTINGS_PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/settings.md differs from src/jitney/config.py; run `make docs` and commit the result", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
