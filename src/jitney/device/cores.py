"""How many cores this process may keep busy: its affinity, or its container's CPU quota if that is less."""

import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """At least 1. Quotas are those of cgroup v2 and v1, rounded up; `root` is where they are looked for (tests)."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = _quota(root / "sys/fs/cgroup")
    return max(1, cores if quota is None else min(cores, quota))


def _quota(group: Path) -> int | None:
    """Cores that the control group allows; None without a limit."""
    limits = _numbers(group / "cpu.max")  # "quota period", or "max period"
    if not limits:
        limits = _numbers(group / "cpu/cpu.cfs_quota_us") + _numbers(group / "cpu/cpu.cfs_period_us")
    if len(limits) != 2 or min(limits) <= 0:
        return None
    return -(-limits[0] // limits[1])


def _numbers(path: Path) -> list[int]:
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) for word in words] if all(word.lstrip("-").isdigit() for word in words) else []
