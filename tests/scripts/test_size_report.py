import subprocess
from pathlib import Path

import pytest

import size_report
from size_report import Size


def test_comments_docstrings_and_blank_lines_are_not_code() -> None:
    source = (
        '"""Module\ndocstring."""\n\n# comment\nx = 1\n\n\ndef f():\n    """Doc."""\n    return (\n        x\n    )\n'
    )
    assert size_report.measure(source) == Size(code=5, lines=12)


def test_a_string_that_is_not_a_docstring_is_code() -> None:
    assert size_report.measure('x = """a\nb\nc"""\n').code == 3


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("src/jitney/kv/blocks.py", "jitney/kv"),
        ("src/jitney/kv/deep/blocks.py", "jitney/kv"),
        ("src/jitney/types.py", "jitney"),
        ("tests/kv/test_blocks.py", "tests"),
    ],
)
def test_files_are_counted_to_their_package(path: str, package: str) -> None:
    assert size_report.package_of(path) == package


def test_over_300_lines_warns_and_over_400_fails() -> None:
    sizes = {"short.py": Size(250, 300), "long.py": Size(250, 301), "edge.py": Size(300, 400), "huge.py": Size(9, 401)}
    warnings, errors = size_report.judge(sizes, allowed={})
    assert [text.split()[0] for text in warnings] == ["long.py", "edge.py"]
    assert [text.split()[0] for text in errors] == ["huge.py"]


def test_a_stated_reason_turns_the_failure_into_a_warning_that_repeats_it() -> None:
    warnings, errors = size_report.judge({"huge.py": Size(9, 401)}, allowed={"huge.py": "one table"})
    assert not errors
    assert "one table" in warnings[0]


@pytest.mark.parametrize("sizes", [{}, {"huge.py": Size(9, 399)}])
def test_an_exception_that_is_needed_no_more_fails(sizes: dict[str, Size]) -> None:
    assert size_report.judge(sizes, allowed={"huge.py": "one table"})[1]


def test_the_change_is_counted_against_a_git_ref(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src/jitney/kv").mkdir(parents=True)
    blocks = tmp_path / "src/jitney/kv/blocks.py"
    blocks.write_text("x = 1\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *command], cwd=tmp_path, check=True
        )
    blocks.write_text("x = 1\ny = 2\nz = 3\n")
    size_report.print_packages(size_report.working_sizes(tmp_path), size_report.base_sizes(tmp_path, "HEAD"))
    assert ["jitney/kv", "3", "+2"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_an_unknown_git_ref_is_named(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    with pytest.raises(SystemExit, match="no-such-ref"):
        size_report.base_sizes(tmp_path, "no-such-ref")
