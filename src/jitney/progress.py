"""The progress bar of an offline run: requests done and tokens per second, on stderr."""

import sys
import time

from tqdm import tqdm

from jitney.engine.loop import Engine

REFRESH_S = 0.1


class _Bar(tqdm):  # type: ignore[misc]  # tqdm has no type hints
    monitor_interval = 0  # no thread to watch over it: it is refreshed here, and a run leaves no thread behind


class ProgressBar:
    """Watches an engine work off `total` requests; costs nothing per token and little per step."""

    def __init__(self, engine: Engine, total: int, is_shown: bool) -> None:
        self._engine = engine
        self._bar = _Bar(total=total, unit=" requests", file=sys.stderr, disable=not is_shown, dynamic_ncols=True)
        self._start = self._shown_at = time.perf_counter()
        self._num_steps = engine.records.num_steps
        self._num_tokens = 0

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._show()
        self._bar.close()

    def step(self) -> None:
        """After each step of the engine."""
        if not self._bar.disable and time.perf_counter() - self._shown_at >= REFRESH_S:
            self._show()

    def _show(self) -> None:
        if self._bar.disable:
            return
        self._shown_at = time.perf_counter()
        records = self._engine.records
        self._num_tokens += int(records.since(self._num_steps)["num_new_tokens"].sum())
        self._num_steps = records.num_steps
        rate = self._num_tokens / max(self._shown_at - self._start, 1e-9)
        self._bar.set_postfix_str(f"{self._num_tokens} tokens, {rate:.1f} tokens/s", refresh=False)
        self._bar.n = self._bar.total - self._engine.num_unfinished
        self._bar.refresh()
