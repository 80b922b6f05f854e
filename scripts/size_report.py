"""Counts lines, so that growth is seen while it is small: per package, and the largest files.

"Code" is lines that hold a token other than comments and docstrings; "lines" is what a reader scrolls through.
A file of more than 300 lines gets a warning; more than 400 fails unless ALLOWED gives the reason.
`--base REF` shows the change against a git ref. After tinygrad's sz.py.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "scripts", "benchmarks")
WARN_LINES = 300
MAX_LINES = 400
NUM_LARGEST = 10

ALLOWED: dict[str, str] = {}
"""Files that may be longer than MAX_LINES -> why they are better whole."""

LAYOUT_TOKENS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    code: int
    lines: int


def measure(source: str) -> Size:
    """The size of one Python file."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT_TOKENS:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Size(len(code), len(source.splitlines()))


def working_sizes(root: Path) -> dict[str, Size]:
    """Path relative to `root` -> size, of every Python file in FOLDERS."""
    files = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")))
    return {path.relative_to(root).as_posix(): measure(path.read_text(encoding="utf-8")) for path in files}


def base_sizes(root: Path, ref: str) -> dict[str, Size]:
    """The same at a git ref. Raises SystemExit with git's message if there is no such ref."""
    done = subprocess.run(["git", "archive", "--format=tar", ref], cwd=root, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"size report: {done.stderr.decode(errors='replace').strip()}")
    sizes = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            is_counted = member.name.startswith(tuple(f"{folder}/" for folder in FOLDERS))
            file = archive.extractfile(member) if is_counted and member.name.endswith(".py") else None
            if file is not None:
                sizes[member.name] = measure(file.read().decode())
    return sizes


def package_of(path: str) -> str:
    """src/jitney/kv/blocks.py -> jitney/kv; tests/kv/test_blocks.py -> tests."""
    parts = path.removeprefix("src/").split("/")
    return "/".join(parts[:2]) if parts[0] == "jitney" and len(parts) > 2 else parts[0]


def print_packages(sizes: dict[str, Size], base: dict[str, Size] | None) -> None:
    code: dict[str, int] = defaultdict(int)
    before: dict[str, int] = defaultdict(int)
    for path, size in sizes.items():
        code[package_of(path)] += size.code
    for path, size in (base or {}).items():
        before[package_of(path)] += size.code
    rows = [(name, code[name], before[name]) for name in sorted({*code, *before})]
    rows.append(("total", sum(code.values()), sum(before.values())))
    print(f"{'package':<28}{'code':>7}" + ("" if base is None else f"{'change':>9}"))
    for name, now, then in rows:
        print(f"{name:<28}{now:>7}" + ("" if base is None else f"{now - then:>+9}"))


def print_largest(sizes: dict[str, Size]) -> None:
    print(f"\n{'largest files':<52}{'code':>7}{'lines':>7}")
    for path, size in sorted(sizes.items(), key=lambda item: -item[1].lines)[:NUM_LARGEST]:
        print(f"{path:<52}{size.code:>7}{size.lines:>7}")


def judge(sizes: dict[str, Size], allowed: dict[str, str]) -> tuple[list[str], list[str]]:
    """(warnings, errors) about files that are too long, and about exceptions that are needed no more."""
    warnings, errors = [], []
    for path, size in sizes.items():
        if size.lines > MAX_LINES and path not in allowed:
            errors.append(f"{path} has {size.lines} lines (limit {MAX_LINES}): split it, or give the reason in ALLOWED")
        elif size.lines > WARN_LINES:
            warnings.append(f"{path} has {size.lines} lines (aim: {WARN_LINES}){_reason(allowed.get(path))}")
    for path in allowed:
        if path not in sizes or sizes[path].lines <= MAX_LINES:
            errors.append(f"{path} needs its entry in ALLOWED no more: remove it")
    return warnings, errors


def _reason(reason: str | None) -> str:
    return f"; allowed: {reason}" if reason else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="REF", help="show the change against this git ref")
    base = parser.parse_args().base
    sizes = working_sizes(ROOT)
    print_packages(sizes, base_sizes(ROOT, base) if base else None)
    print_largest(sizes)
    warnings, errors = judge(sizes, ALLOWED)
    print()
    for warning in warnings:
        print(f"warning: {warning}")
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
