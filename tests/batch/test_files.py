import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitney.batch.files import InputLines, OutputError, OutputFile
from jitney.errors import ConfigError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"a": 1}\n\n  \n{"b": 2}\r\nlast line without an end')
    return path


def test_lines_keep_their_numbers_and_empty_ones_are_left_out(source: Path) -> None:
    lines = InputLines(source)
    assert [(number, line.strip()) for number, line in lines] == [
        (1, b'{"a": 1}'),
        (4, b'{"b": 2}'),
        (5, b"last line without an end"),
    ]
    assert len(lines) == 3


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_an_input_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the input file"):
        InputLines(tmp_path / name)


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="name a regular file"):
        InputLines(tmp_path / "pipe")


def test_an_existing_output_is_kept_unless_overwritten(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="pass --overwrite"):
        OutputFile(path, overwrite=False, input_path=source)
    assert path.read_text() == "precious"
    with OutputFile(path, overwrite=True, input_path=source) as file:
        file.write({"a": "あ"})
    assert path.read_text(encoding="utf-8") == '{"a": "あ"}\n'


def test_the_input_is_never_the_output(source: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(source)
    before = source.read_bytes()
    for path in (source, link):
        with pytest.raises(ConfigError, match="is the input file"):
            OutputFile(path, overwrite=True, input_path=source)
    assert source.read_bytes() == before


def test_an_output_folder_that_is_not_there_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the output file"):
        OutputFile(tmp_path / "no" / "out.jsonl", overwrite=False, input_path=source)


def test_every_line_is_in_the_file_before_the_next_one_is_made(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    killed = (
        "import os, sys; from pathlib import Path; from jitney.batch.files import OutputFile\n"
        "file = OutputFile(Path(sys.argv[1]), overwrite=False, input_path=Path(sys.argv[2]))\n"
        "file.write({'line': 1}); file.write({'line': 2}); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(path), str(source)], timeout=60)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"line": 1}, {"line": 2}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_an_error_with_the_files_name(source: Path) -> None:
    with (
        OutputFile(Path("/dev/full"), overwrite=True, input_path=source) as file,
        pytest.raises(OutputError, match="full"),
    ):
        file.write({})
