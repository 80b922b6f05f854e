"""How much memory this process may still take: the machine's, or its container's if that is less. Reads files only."""

import os
from collections.abc import Iterator
from pathlib import Path


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping or being killed.

    The least of the kernel's estimate (/proc/meminfo) and what is left under the memory limit of each control group
    (v1 and v2) that the process is in. Page cache that the kernel can drop counts as free. Where there is no
    /proc/meminfo, the physical memory stands in for it. `root` is where the file system is looked for (tests).
    """
    machine = _meminfo_available(root / "proc/meminfo")
    if machine is None:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(0, min([machine, *_left_in_groups(root)]))


def _meminfo_available(path: Path) -> int | None:
    for line in _lines(path):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """What is left under each limit, from the process's own group up to the root of the hierarchy."""
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, base = ("memory.max", "memory.current", "inactive_file"), mount
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = mount / "memory"
        else:
            continue
        for group in _with_parents(base, path):
            left = _left(group, *names)
            if left is not None:
                yield left


def _with_parents(base: Path, path: str) -> Iterator[Path]:
    # in a container the path may be the host's and absent here; the mount's root is then the container's own group
    parts = [part for part in path.strip().split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:depth])


def _left(group: Path, limit_file: str, usage_file: str, cache_key: str) -> int | None:
    limit, usage = _number(group / limit_file), _number(group / usage_file)
    if limit is None or usage is None:
        return None
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == cache_key:
            usage -= int(value)
    return limit - max(usage, 0)


def _number(path: Path) -> int | None:
    """The file's number; None if there is no file or it says "max" (no limit)."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
