"""Command line options made from the settings and the wire's own types, so that each is named and bounded once."""

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from cli.config.errors import CommandFailed, InvalidOption
from cli.config.settings import InvalidSettings, Settings, flag, load, unknown_variables
from protocol.request import Bias, Limits, Sampling

Made = TypeVar("Made", Sampling, Limits)

INTERRUPTED = 128 + signal.SIGINT
"""The exit status of a command that Ctrl-C has ended, as shells have it."""


def takes_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these settings and `--config`; it receives one `settings: Settings` instead."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [each.replace(kind=keyword) for name, each in signature.parameters.items() if name != "settings"]
        made = [_setting_parameter(name) for name in names] + [_CONFIG]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            flags = {name: values.pop(name) for name in names}
            try:
                settings = load(flags, values.pop("config"))
            except InvalidSettings as error:
                raise InvalidOption(str(error)) from error
            for sentence in unknown_variables():
                Console(stderr=True).print(f"[yellow]Warning:[/] {escape(sentence)}")
            try:
                command(settings=settings, **values)
            except CommandFailed as error:
                fail(str(error))
            except KeyboardInterrupt:
                leave_now()

        parameters = sorted(own + made, key=lambda parameter: parameter.name != "model")
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def fail(sentence: str) -> NoReturn:
    """Say why on stderr and leave with status 1."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]Error:[/] {escape(sentence)}")
    raise typer.Exit(1)


def leave_now() -> NoReturn:
    """Leave with the status of a Ctrl-C, and without the interpreter's own end: what was broken off inside a call to a
    device is still held by the exception, and to free it after its device ends the process by a SIGSEGV."""
    with contextlib.suppress(OSError):  # a closed pipe
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)


def _setting_parameter(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    panel = extra["panel"] if isinstance(extra, dict) else None
    if name == "model":
        info: Any = typer.Argument(help=field.description, metavar="MODEL", show_default=False)
    else:
        off = field.default == "" or field.default is False
        shown = "on" if field.default is True else not off and str(field.default)
        # A switch that is on has a flag to turn it off, too.
        names = f"{flag(name)}/--no-{flag(name)[2:]}" if field.default is True else flag(name)
        metavar = "" if field.annotation is bool else None
        info = typer.Option(
            names, help=field.description, show_default=shown, rich_help_panel=str(panel), metavar=metavar
        )
    kind: Any = field.annotation
    annotation = Annotated[kind | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def switch(*names: str, help: str, **more: Any) -> Any:
    """An option without a value. (Typer would show it with one, `<bool>`.)"""
    return typer.Option(*names, help=help, metavar="", show_default=False, **more)


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option("--config", help="A TOML file of settings.", show_default="baton.toml, if there is one"),
    ],
)

SAMPLING = "Sampling"
MaxTokens = Annotated[
    int | None, typer.Option("-n", "--max-tokens", help="Tokens to generate at most.", rich_help_panel=SAMPLING)
]
Temperature = Annotated[float, typer.Option(help="0 is greedy; higher is freer.", rich_help_panel=SAMPLING)]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.", rich_help_panel=SAMPLING)]
TopP = Annotated[
    float, typer.Option(help="Keep the most likely tokens up to this probability.", rich_help_panel=SAMPLING)
]
MinP = Annotated[
    float, typer.Option(help="Keep tokens this likely relative to the best one.", rich_help_panel=SAMPLING)
]
Seed = Annotated[int, typer.Option(help="Equal seeds draw equal tokens.", rich_help_panel=SAMPLING)]
Stops = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End before this text. May be given again.", rich_help_panel=SAMPLING),
]
PresencePenalty = Annotated[
    float, typer.Option(help="Taken off the logits of tokens that were generated.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Taken off a token's logit for each time it was generated.", rich_help_panel=SAMPLING)
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1 makes what was said or asked less likely.", rich_help_panel=SAMPLING)
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        help="Add this to a token's logit. May be given again.",
        metavar="ID=BIAS",
        rich_help_panel=SAMPLING,
    ),
]
MinTokens = Annotated[int, typer.Option(help="Tokens to generate at least.", rich_help_panel=SAMPLING)]
IgnoreEos = Annotated[bool, switch("--ignore-eos", help="Run to --max-tokens.", rich_help_panel=SAMPLING)]


def sampling(**values: Any) -> Sampling:
    """Checked sampling parameters, by the names of `Sampling`'s fields. Raises `InvalidOption` that names the flag."""
    return _checked(Sampling(**values))


def biases(assignments: list[str] | None) -> tuple[Bias, ...]:
    """The values of `--logit-bias`. Raises `InvalidOption`."""
    out = []
    for assignment in assignments or ():
        token, _, bias = assignment.partition("=")
        try:
            out.append(Bias(int(token), float(bias)))
        except ValueError as error:
            raise InvalidOption(f"--logit-bias: write ID=BIAS, both numbers, not {assignment!r}") from error
    return tuple(out)


def limits(
    *, max_tokens: int | None, stop: list[str] | None = None, ignore_eos: bool = False, min_tokens: int = 0
) -> Limits:
    """Checked limits. Raises `InvalidOption` that names the flag."""
    return _checked(Limits(max_tokens, tuple(stop or ()), ignore_eos, min_tokens=min_tokens))


def _checked(made: Made) -> Made:
    """The wire's own bounds, one field at a time so that the error can name it."""
    kind = type(made)
    for name, value in msgspec.structs.asdict(made).items():
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=_annotation(kind, name))
        except (msgspec.ValidationError, UnicodeEncodeError, OverflowError) as error:
            problem = str(error).partition(" - at")[0].replace("`", "")
            raise InvalidOption(f"{flag(name)}: {problem[0].lower()}{problem[1:]}, not {value!r}") from error
    return made


def _annotation(kind: type[msgspec.Struct], name: str) -> Any:
    return next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
