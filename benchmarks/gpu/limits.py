"""What the device can do at most: the rate of a large copy and of a large matrix product, measured in the same run."""

import shutil
import statistics
import subprocess
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

from gpu.running import Part
from gpu.served import Bench


def measure(bench: Bench, part: Part) -> None:
    scale, device = bench.scale, torch.device(bench.device)
    part.result.document["device"] = describe(device)
    size = scale.matmul_size
    copy_s = _copy_s(scale.copy_bytes, scale.repeats, device)
    product_s = _product_s(size, getattr(torch, scale.dtype), scale.repeats, device)
    part.result.document["limits"] = {
        "copy_bytes_per_s": 2 * scale.copy_bytes / copy_s,
        "matmul_flop_per_s": 2 * size**3 / product_s,
    }
    part.total(
        **{
            "copy TB/s (read + written)": round(2 * scale.copy_bytes / copy_s / 1e12, 3),
            f"{scale.dtype} product TFLOP/s": round(2 * size**3 / product_s / 1e12, 2),
        }
    )


def _copy_s(num_bytes: int, repeats: int, device: torch.device) -> float:
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return statistics.median(timed(lambda: target.copy_(source), repeats, device))


def _product_s(size: int, dtype: torch.dtype, repeats: int, device: torch.device) -> float:
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return statistics.median(timed(lambda: left @ right, repeats, device))


def limit(part: Part, name: str) -> float | None:
    """A measured limit, or None if it could not be measured."""
    found: float | None = part.result.document.get("limits", {}).get(name)
    return found


def timed(run: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each of `repeats` runs, after two more to warm up."""
    for _ in range(2):
        run()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            start = perf_counter()
            run()
            times.append(perf_counter() - start)
        return times
    make_event: Any = torch.cuda.Event  # its signature has no types
    marks = [make_event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]


def describe(device: torch.device) -> dict[str, Any]:
    """The device, its driver and the versions of what runs on it."""
    found: dict[str, Any] = {"type": device.type, "torch": torch.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    return found


def _driver() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(done.stdout.split()), None)
