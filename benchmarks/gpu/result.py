"""What has been measured so far: a JSON file that is whole at any moment, and the tables printed from it.

Every row is written at once, so that a run that is cut off keeps what it measured.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import report

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


class Result:
    """The document in `path`. One process writes it at a time.

    Each part has a `status` (waiting, running, done, failed), `rows` and `totals` (tables), `notes`, and an `error`
    if it failed.
    """

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self._path = path
        self.document = document

    @classmethod
    def new(cls, path: Path, settings: dict[str, Any], parts: Iterable[str], budget_s: float) -> "Result":
        empty = {"status": WAITING, "rows": [], "totals": [], "notes": []}
        document = {
            "benchmark": "gpu_check",
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": report.machine(),
            "settings": settings,
            "ends_at": time.monotonic() + budget_s,
            "parts": {name: json.loads(json.dumps(empty)) for name in parts},
        }
        result = cls(path, document)
        result.save()
        return result

    @classmethod
    def load(cls, path: Path) -> "Result":
        return cls(path, json.loads(path.read_text(encoding="utf-8")))

    def save(self) -> None:
        """Replace the file; a reader sees the old one or the new one, never half of one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f"{self._path.name}.draft")
        draft.write_text(json.dumps(self.document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(draft, self._path)

    def reload(self) -> None:
        self.document = json.loads(self._path.read_text(encoding="utf-8"))

    def part(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.document["parts"].get(name, {})
        return found

    def with_status(self, status: str) -> list[str]:
        return [name for name, part in self.document["parts"].items() if part["status"] == status]

    def start(self, name: str, budget_s: float) -> None:
        self.part(name).update(status=RUNNING, budget_s=round(budget_s, 1), started_at=time.monotonic())
        self.save()

    def end(self, name: str, error: str | None = None) -> None:
        part = self.part(name)
        seconds = time.monotonic() - part.pop("started_at") if "started_at" in part else 0.0
        part.update(status=DONE if error is None else FAILED, seconds=round(seconds, 1))
        if error is not None:
            part["error"] = error
        self.save()
        last = (error or "").strip().splitlines()[-1:]
        print(f"{name}: {part['status']} in {part['seconds']} s, {len(part['rows'])} rows {' '.join(last)}", flush=True)

    def print(self) -> None:
        """Every part's tables (of checks, those that are not ok) and notes, and what failed; the totals last."""
        for name, part in self.document["parts"].items():
            print(f"\n== {name}: {part['status']}, {part.get('seconds', 0)} s")
            for note in part["notes"]:
                print(f"   {note}")
            report.print_table([row for row in part["rows"] if row.get("verdict") != "ok"])
            if "error" in part:
                print(part["error"].rstrip())
        print()
        for name, part in self.document["parts"].items():
            if part["totals"]:
                print(f"== {name}")
                report.print_table(part["totals"])
        print("  ".join(f"{name}: {part['status']}" for name, part in self.document["parts"].items()))
