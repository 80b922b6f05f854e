import argparse
from importlib import import_module

import pytest

from jitney.cli import main as cli


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_names_the_default_of_every_flag(name: str) -> None:
    parser = argparse.ArgumentParser()
    import_module(cli.COMMANDS[name]).add_arguments(parser)
    for action in parser._actions:
        if action.option_strings and not action.required and action.option_strings != ["-h", "--help"]:
            assert "(default: " in (action.help or ""), action.option_strings


@pytest.mark.parametrize("name", ["generate", "chat", "run-batch"])
def test_every_setting_of_the_engine_is_a_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    help = capsys.readouterr().out
    assert "--model MODEL" in help and "--max-num-seqs N" in help and "--batching-policy" in help
