"""The input and output files of a batch. What has been written stays, whatever happens to the run.

Knows nothing of what is in a line.
"""

import json
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from jitney.errors import ConfigError, JitneyError


class OutputError(JitneyError, RuntimeError):
    """An answer cannot be stored, so the run cannot go on."""


class InputLines:
    """The lines of a file with anything on them, read one at a time.

    Raises:
        ConfigError: the file cannot be read, or is a pipe, which could not be read twice (first to count its lines).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists() and not path.is_file():
            raise ConfigError(f"cannot read the input file {path}: it is a folder or a pipe; name a regular file")
        try:
            with path.open("rb") as file:
                self._num_lines = sum(1 for line in file if line.strip())
        except OSError as error:
            raise ConfigError(f"cannot read the input file {path}: {error.strerror}") from error

    def __len__(self) -> int:
        return self._num_lines

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """(line number from 1, the line)"""
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line


class OutputFile:
    """Appends JSON lines, each handed to the operating system whole and at once.

    So a run that is killed leaves every line it had finished.
    """

    def __init__(self, path: Path, *, overwrite: bool, input_path: Path) -> None:
        """
        Raises:
            ConfigError: the file exists and `overwrite` is off, is the input, or cannot be written.
        """
        if path.exists() and path.samefile(input_path):
            raise ConfigError(f"the output file {path} is the input file; choose another name")
        try:
            self._file = FileIO(str(path), "w" if overwrite else "x")
        except FileExistsError as error:
            raise ConfigError(f"the output file {path} exists; choose another name or pass --overwrite") from error
        except OSError as error:
            raise ConfigError(f"cannot write the output file {path}: {error.strerror}") from error
        self._path = path

    def write(self, value: dict[str, Any]) -> None:
        """Append one line. Raises OutputError if the disk does not take it."""
        line = (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
        try:
            written = self._file.write(line)
        except OSError as error:
            raise OutputError(f"cannot write to {self._path}: {error.strerror}") from error
        if written != len(line):
            raise OutputError(f"cannot write to {self._path}: the disk is full")

    def __enter__(self) -> "OutputFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
