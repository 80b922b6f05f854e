import argparse
from dataclasses import fields
from typing import Any

import pytest

from jitney.cli import sampling_flags
from jitney.cli.sampling_flags import add_sampling_flags, sampling_params
from jitney.errors import RequestError
from jitney.sampling_params import SamplingParams


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_sampling_flags(parser)
    return parser


def parse(*argv: str) -> SamplingParams:
    return sampling_params(parser().parse_args(argv))


def test_without_flags_the_params_are_the_default_ones() -> None:
    assert parse() == SamplingParams()


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--top-k", "5"], "top_k", 5),
        (["--top-k", "-1"], "top_k", -1),
        (["--temperature", "0"], "temperature", 0.0),
        (["--presence-penalty", "-0.5"], "presence_penalty", -0.5),
        (["--max-tokens", "9"], "max_tokens", 9),
        (["--max-tokens", "none"], "max_tokens", None),
        (["--seed", "7"], "seed", 7),
        (["--stop", "a b", "--stop", "c"], "stop", ["a b", "c"]),
        (["--stop-token-ids", "1,2"], "stop_token_ids", [1, 2]),
        (["--allowed-token-ids", "3"], "allowed_token_ids", [3]),
        (["--logit-bias", "3=1.5,4=-2"], "logit_bias", {3: 1.5, 4: -2.0}),
        (["--ignore-eos"], "ignore_eos", True),
        (["--no-skip-special-tokens"], "skip_special_tokens", False),
    ],
)
def test_a_flag_sets_its_parameter(argv: list[str], name: str, value: Any) -> None:
    assert parse(*argv) == SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--top-k", "few"], "invalid int value: 'few'"),
        (["--stop-token-ids", "1,a"], "invalid token_ids value: '1,a'"),
        (["--logit-bias", "5"], "invalid token_biases value: '5'"),
        (["--logit-bias", "5=1=2"], "invalid token_biases value"),
        (["--max-tokens", ""], "invalid int_or_none value: ''"),
    ],
)
def test_a_value_of_the_wrong_form_is_refused(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        parse(*argv)
    assert exit.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_value_out_of_range_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="top_p"):
        parse("--top-p", "2")


def test_help_shows_every_parameter_with_its_text_and_default() -> None:
    text = " ".join(parser().format_help().split())
    docs = sampling_flags._field_docs(SamplingParams)
    assert list(docs) == [field.name for field in fields(SamplingParams)]
    for field in fields(SamplingParams):
        assert "--" + field.name.replace("_", "-") in text
    assert f"{docs['temperature']} (default: 1.0)" in text
    assert f"{docs['max_tokens']} (default: none)" in text
    assert f"{docs['ignore_eos']} (default: off)" in text
    assert text.count("(default: ") == len(fields(SamplingParams))


def test_excluded_parameters_have_no_flag() -> None:
    parser = argparse.ArgumentParser()
    add_sampling_flags(parser, exclude=["seed"])
    assert "--seed" not in parser.format_help()
    assert sampling_params(parser.parse_args(["--top-k", "3"]), exclude=["seed"]) == SamplingParams(top_k=3)


def test_without_its_source_the_flags_work_and_only_the_texts_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_source(cls: type) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr("inspect.getsource", no_source)
    assert parse("--top-k", "3") == SamplingParams(top_k=3)
