"""What every benchmark prints and writes: its rows, and the machine, versions and settings they were made with."""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parser(description: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    result.add_argument("--json", type=Path, metavar="FILE", help="write the result, with machine and versions")
    return result


def machine() -> dict[str, Any]:
    """Processor, cores, memory and versions."""
    packages = ("jitney", "torch", "transformers", "numpy", "tokenizers", "gguf")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def finish(name: str, settings: dict[str, Any], rows: Sequence[dict[str, Any]], path: Path | None, **more: Any) -> None:
    """Print the rows as a table and, if asked, write everything as JSON."""
    print_table(rows)
    if path is not None:
        document = {"benchmark": name, "machine": machine(), "settings": settings, "rows": list(rows), **more}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"\nwritten to {path}")


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Columns in the order of the first row's keys."""
    if not rows:
        return
    columns = list(rows[0])
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    for number, line in enumerate(cells):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
        if number == 0:
            print("  ".join("-" * width for width in widths))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
