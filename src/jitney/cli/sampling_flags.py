"""Command-line flags for sampling, derived from SamplingParams: names, defaults and help texts are written there.

`top_k: int = 0` with its docstring becomes `--top-k N`. Knows nothing of any sub-command.
"""

import argparse
import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from typing import Any, get_type_hints

from jitney.sampling_params import SamplingParams

NONE = "none"
"""How None is written on the command line."""


def add_sampling_flags(parser: argparse.ArgumentParser, exclude: Collection[str] = ()) -> None:
    """Add one flag for each field of SamplingParams but those in `exclude`, in a group of their own."""
    group = parser.add_argument_group("sampling")
    hints, docs = get_type_hints(SamplingParams), _field_docs(SamplingParams)
    for field in _flag_fields(exclude):
        default = _default(field)
        help = f"{docs.get(field.name, '')} (default: {_default_text(default)})".replace("%", "%%").strip()
        flag = "--" + field.name.replace("_", "-")
        hint = hints[field.name]
        if hint is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=help)
        elif hint == str | Sequence[str]:
            help = f"May be given several times. {help}"
            group.add_argument(flag, action="append", metavar="TEXT", help=help)
        else:
            parse, metavar = _PARSERS[hint]
            group.add_argument(flag, type=parse, default=default, metavar=metavar, help=help)


def sampling_params(args: argparse.Namespace, exclude: Collection[str] = ()) -> SamplingParams:
    """The SamplingParams that the parsed flags describe. Raises RequestError where a value is out of range."""
    given = {field.name: getattr(args, field.name) for field in _flag_fields(exclude)}
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def _flag_fields(exclude: Collection[str]) -> list[Field[Any]]:
    return [field for field in fields(SamplingParams) if field.name not in exclude]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return NONE if default is None or default == () or default == {} else str(default)


def _field_docs(cls: type) -> dict[str, str]:
    """The docstrings below a class's fields (PEP 258), on one line each; none where the source is not installed."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except OSError:
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(below.value.value.split())
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


# argparse names these functions where they fail: "invalid token_ids value: 'x'".


def int_or_none(text: str) -> int | None:
    return None if text == NONE else int(text)


def token_ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def token_biases(text: str) -> dict[int, float]:
    pairs = [part.split("=") for part in text.split(",")]
    return {int(token): float(bias) for token, bias in pairs}


_PARSERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "N"),
    float: (float, "X"),
    int | None: (int_or_none, f"N|{NONE}"),
    Sequence[int]: (token_ids, "ID,ID,..."),
    Sequence[int] | None: (token_ids, "ID,ID,..."),
    Mapping[int, float]: (token_biases, "ID=BIAS,..."),
}
