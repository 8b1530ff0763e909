"""Command-line options made from the settings, so that each has one name, one description and one range."""

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

import structlog
import typer
from rich.console import Console
from rich.markup import escape

from actors.process.logs import configure_logging, log_what_python_prints
from cli.config.errors import CommandFailed, InvalidOption
from cli.config.panels.backend_name import backend_names
from cli.config.settings import Settings, flag
from cli.config.sources import InvalidSettings, load, unknown_variables

_log = structlog.get_logger("cli.config.options")

IN_PROCESS = (
    *("model", "backend", "device", "dtype", "quantize", "kv_dtype", "window_cache", "cpu", "context", "threads"),
    *("threads_bind", "mmap", "cache_dir"),
    *("tool_parser", "reasoning_parser"),
)
"""The settings of a command that runs a model in its own process."""
INVALID = 2
"""Exit status of a command with an invalid option or setting."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that was ended by Ctrl-C, as in shells."""


def takes_settings(*names: str, logs_as: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command `--config` and the options of these settings. It receives one `settings: Settings` instead.

    `logs_as` is the name in the log of a command that serves. Unless standard error is a terminal, all its output is
    log lines.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [each.replace(kind=keyword) for name, each in signature.parameters.items() if name != "settings"]
        made = [_setting_parameter(name) for name in names] + [_CONFIG]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            flags = {name: values.pop(name) for name in names}
            flags = {name: None if value == [] else value for name, value in flags.items()}
            if logs_as and not sys.stderr.isatty():
                _run_logged(command, logs_as, flags, values)
                return
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


def _run_logged(command: Callable[..., None], process: str, flags: dict[str, Any], values: dict[str, Any]) -> None:
    """Run a command whose errors and warnings are lines of its log. Raises `typer.Exit` with its status."""
    configure_logging(process, "info")
    with log_what_python_prints():
        try:
            settings = load(flags, values.pop("config"))
        except InvalidSettings as error:
            _log.error("command_failed", problem=str(error))
            raise typer.Exit(INVALID) from error
        for sentence in unknown_variables():
            _log.warning("variable_unknown", problem=sentence)
        try:
            command(settings=settings, **values)
        except CommandFailed as error:
            _log.error("command_failed", problem=str(error))
            raise typer.Exit(1) from error
        except KeyboardInterrupt:
            leave_now()
        except Exception as error:
            _log.exception("command_failed", problem="a bug")
            raise typer.Exit(1) from error


def fail(sentence: str) -> NoReturn:
    """Print an error on stderr and exit with status 1."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]Error:[/] {escape(sentence)}")
    raise typer.Exit(1)


def leave_now() -> NoReturn:
    """Exit with the status of Ctrl-C, without the interpreter's shutdown.

    The exception still holds what was interrupted inside a call to a device. Freeing that after its device would crash.
    """
    with contextlib.suppress(OSError):  # a closed pipe
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)


def flags_given(invocation: typer.Context) -> set[str]:
    """Return the names of the parameters that were given on the command line."""
    sources = {name: invocation.get_parameter_source(name) for name in invocation.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def switch(*names: str, help: str, **more: Any) -> Any:
    """Declare an option without a value."""
    return typer.Option(*names, help=help, show_default=False, **more)


Json = Annotated[bool, switch("--json", help="Print one JSON object.")]


def _setting_parameter(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if name == "model":
        info: Any = typer.Argument(
            help=field.description, metavar="MODEL", show_default=False, autocompletion=complete_model
        )
    else:
        # A switch that is on by default has another flag that turns it off.
        names = f"{flag(name)}/--no-{flag(name)[2:]}" if field.default is True else flag(name)
        info = typer.Option(
            names,
            help=_with_default(field.description or "", field.default),
            show_default=False,
            rich_help_panel=str(extra["panel"]),
            metavar=str(extra["metavar"] or _metavar(name, field.annotation)),
            autocompletion=complete_backend if name == "backend" else _completion(field.annotation),
        )
    # Other values stay text, which `Settings` parses, so that errors are those of variables and files.
    kind: Any = list[str] if isinstance(field.default, tuple) else bool if field.annotation is bool else str
    annotation = Annotated[kind | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(name: str, kind: Any) -> str:
    if kind is bool:
        return ""
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if name.endswith("_s"):
        return "SECONDS"
    return "BYTES" if name.endswith("_bytes") else "N"


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a model: the built-in one, and those of the hub's cache."""
    from cli.config.model import BUILTIN_NAME

    return [name for name in (BUILTIN_NAME, *complete_hub_model("")) if name.startswith(incomplete)]


def complete_hub_model(incomplete: str) -> list[str]:
    """Complete the name of a model of the hub's cache, and of each of its GGUF models."""
    from workers.hub.cache import HubCache

    found = HubCache().read().models
    names = dict.fromkeys(str(id) for model in found for id in (model.id, *(each for each, *_ in model.entries())))
    return [name for name in names if name.startswith(incomplete)]


def complete_backend(incomplete: str) -> list[str]:
    """Complete the name of a backend, those of plug-ins included."""
    return [name for name in backend_names() if name.startswith(incomplete)]


def _completion(kind: Any) -> Callable[[str], list[str]] | None:
    """Return the completion of an option with a closed list of values, for shells."""
    if get_origin(kind) is not Literal:
        return None
    return lambda incomplete: [value for value in get_args(kind) if value.startswith(incomplete)]


def _with_default(help: str, default: Any) -> str:
    """Append the default. The parameter's own default is None, which tells Typer that the flag was not given."""
    if default in ("", ()) or default is False:
        return escape(help)
    shown = escape(f"[default: {'on' if default is True else default}]")
    return f"{escape(help)} [dim]{shown}[/dim]"


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            help=_with_default("TOML file with settings.", "baton.toml, if it exists"),
            show_default=False,
            metavar="FILE",
        ),
    ],
)
