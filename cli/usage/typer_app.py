"""The Typer classes of all commands. Their help shows no Python types."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from cli.usage.foreign_words import COMMANDS, MODEL, flag_hint

Function = TypeVar("Function", bound=Callable[..., Any])


def _without_types(parameters: list[Any]) -> list[Any]:
    """Hide the Python types that Typer shows: `<bool>` of flags such as `--help`, and `<str>` of arguments."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command. An error about a flag of another server names its own."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            self._add_hint(error, words)
            raise

    def _add_hint(self, error: Any, words: list[str]) -> None:
        """Extend the error of an unknown flag, whose class is private in Typer."""
        if not hasattr(error, "possibilities"):
            return
        known = {flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        if "model" in known:
            known.add(MODEL)
        if hint := flag_hint(words, error.option_name, known, serves="--max-batch-size" in known):
            error.message, error.possibilities = f"No such option: {hint[0]}; {hint[1]}", None


class Group(TyperGroup):
    """A group of commands. An error about a command of another program names that of `baton`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if ctx.parent is None and args[0] not in self.commands and args[0] in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}; use {COMMANDS[args[0]]}")
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A Typer app whose commands and groups are of the classes above."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Command, **options)
