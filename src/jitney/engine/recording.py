"""Records a timeline for as long as a block of code lasts, and writes it whatever the end is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitney.engine.loop import Engine
from jitney.engine.timeline import Timeline
from jitney.errors import ConfigError


@contextmanager
def recorded(engine: Engine, path: str | Path | None) -> Iterator[None]:
    """Write who sat where, step by step, to `path` (None: record nothing). Enter it while the engine is idle.

    Raises:
        ConfigError: the file cannot be written; said before anything runs.
    """
    if path is None:
        yield
        return
    path = Path(path)
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"timeline={str(path)!r} cannot be written: name a file in a folder that exists")
    timeline = engine.timeline = Timeline(engine.records)
    try:
        yield
    finally:
        engine.timeline = None
        timeline.write(path)
