"""Records a timeline for as long as a block of code lasts, and writes it whatever the end is."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jitney.engine.loop import Engine
from jitney.engine.timeline import Timeline
from jitney.errors import ConfigError

logger = logging.getLogger(__name__)


@contextmanager
def recorded(engine: Engine, path: str | Path | None) -> Iterator[None]:
    """Write who sat where, step by step, to `path` (None: record nothing). Enter it while the engine is idle.

    Raises:
        ConfigError: the file cannot be written; said before anything runs. A disk that is full at the end is logged.
    """
    if path is None:
        yield
        return
    try:
        path = Path(path)
        path.open("a").close()
    except (OSError, TypeError, ValueError) as error:  # ValueError: no name that the system can take
        raise ConfigError(
            f"timeline={path!r} cannot be written: {error}; name a file in a folder that exists"
        ) from error
    timeline = engine.timeline = Timeline(engine.records)
    try:
        yield
    finally:
        engine.timeline = None
        try:
            timeline.write(path)
        except OSError as error:  # the outputs are worth more than their trace
            logger.error("timeline=%r could not be written: %s", str(path), error)
