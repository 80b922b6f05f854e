import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jitney.cli import flags
from jitney.config import EngineConfig
from jitney.errors import ConfigError


def parse(*argv: str) -> EngineConfig:
    parser = argparse.ArgumentParser()
    flags.add_engine_flags(parser)
    return flags.engine_config(parser.parse_args(argv))


def help_text() -> str:
    parser = argparse.ArgumentParser()
    flags.add_engine_flags(parser)
    return " ".join(parser.format_help().split())


def test_without_flags_the_config_is_the_default_one() -> None:
    assert parse() == EngineConfig()


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--max-num-seqs", "7"], "max_num_seqs", 7),
        (["--num-kv-blocks", "32"], "num_kv_blocks", 32),
        (["--num-kv-blocks", "auto"], "num_kv_blocks", None),
        (["--dynamic-batching-window-s", "0.5"], "dynamic_batching_window_s", 0.5),
        (["--no-async-scheduling"], "async_scheduling", False),
        (["--trust-remote-code"], "trust_remote_code", True),
        (["--batching-policy", "static"], "batching_policy", "static"),
    ],
)
def test_a_flag_sets_its_setting(argv: list[str], name: str, value: Any) -> None:
    config = parse(*argv)
    assert getattr(config, name) == value
    changed = {field.name for field in fields(config) if getattr(config, field.name) != field.default}
    assert changed <= {name}


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--batching-policy", "statik"], "invalid choice: 'statik'"),
        (["--max-num-seqs", "many"], "invalid int value: 'many'"),
        (["--max-num-seqs", "auto"], "invalid int value: 'auto'"),
        (["--no-max-num-seqs"], "unrecognized arguments"),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        parse(*argv)
    assert exit.value.code == 2
    assert complaint in capsys.readouterr().err


def test_values_that_do_not_go_together_raise_a_config_error() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens=8 is below max_num_seqs=9"):
        parse("--max-num-seqs", "9", "--max-num-batched-tokens", "8")


def test_help_shows_every_flag_with_its_text_and_default() -> None:
    text = help_text()
    for setting in flags.engine_settings():
        assert setting.flag in text
        assert f"{' '.join(setting.help.split())} (default: {setting.default_text})" in text
    assert "--num-kv-blocks N|auto" in text
    assert "(default: auto)" in text


def test_every_setting_of_the_engine_has_a_flag_and_a_help_text() -> None:
    settings = flags.engine_settings()
    assert [setting.name for setting in settings] == [field.name for field in fields(EngineConfig)]
    assert all(len(setting.help) > 10 for setting in settings)


@pytest.mark.parametrize("hint", [list[int], Path, int | str | None])
def test_a_setting_of_a_type_without_a_flag_form_is_refused(hint: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        flags._setting("new_setting", hint, None, "A new setting.")
