"""Command-line flags for the engine's settings, derived from EngineConfig: each default and help text is written there.

`num_kv_blocks: int | None = setting(None, "Blocks in ...")` becomes `--num-kv-blocks N|auto`; a bool becomes
`--flag / --no-flag`; a Literal becomes a list of choices. Knows nothing of any sub-command.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jitney.config import EngineConfig

AUTO = "auto"
"""How None, "the engine decides", is written on the command line and in the docs."""


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """One field of EngineConfig as users see it."""

    name: str
    type: type
    """bool, int, float or str."""
    choices: tuple[str, ...]
    """The allowed values of a str (empty: any)."""
    is_optional: bool
    """None is allowed, shown as "auto"."""
    default: Any
    help: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return AUTO if self.default is None else str(self.default)


def engine_settings() -> list[EngineSetting]:
    """The fields of EngineConfig, in order. Raises TypeError for a field type that has no flag form."""
    hints = get_type_hints(EngineConfig)
    return [
        _setting(field.name, hints[field.name], field.default, field.metadata["help"]) for field in fields(EngineConfig)
    ]


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag for each setting of the engine, in a group of their own."""
    group = parser.add_argument_group("engine settings")
    for setting in engine_settings():
        help = f"{setting.help} (default: {setting.default_text})".replace("%", "%%")
        if setting.type is bool:
            group.add_argument(setting.flag, action=argparse.BooleanOptionalAction, default=setting.default, help=help)
        elif setting.choices:
            group.add_argument(setting.flag, choices=setting.choices, default=setting.default, help=help)
        else:
            group.add_argument(
                setting.flag, type=_parser_of(setting), default=setting.default, help=help, metavar=_metavar(setting)
            )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The EngineConfig that the parsed flags describe. Raises ConfigError where values do not go together."""
    return EngineConfig(**{field.name: getattr(args, field.name) for field in fields(EngineConfig)})


def _setting(name: str, hint: Any, default: Any, help: str) -> EngineSetting:
    is_optional = get_origin(hint) is UnionType and NoneType in get_args(hint)
    if is_optional:
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    value_type = str if choices else hint
    if value_type not in (bool, int, float, str):
        raise TypeError(f"EngineConfig.{name}: no flag form for the type {hint!r}")
    return EngineSetting(name, value_type, choices, is_optional, default, help)


def _parser_of(setting: EngineSetting) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        return None if setting.is_optional and text == AUTO else setting.type(text)

    parse.__name__ = setting.type.__name__  # argparse names it in "invalid int value"
    return parse


def _metavar(setting: EngineSetting) -> str:
    metavar = {int: "N", float: "X", str: "TEXT"}[setting.type]
    return f"{metavar}|{AUTO}" if setting.is_optional else metavar
