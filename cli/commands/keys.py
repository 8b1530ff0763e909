"""`baton keys`: the API keys of clients, with their limits."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from cli.config.errors import CommandFailed, InvalidOption
from cli.config.number import number_of
from cli.config.options import Json, switch, takes_settings
from cli.config.settings import Settings
from cli.terminal.key_table import described, show_keys
from cli.usage.typer_app import App
from gateway.key_weights import Priority
from gateway.keys.key_file import ApiKeysInvalid, KeyFile
from gateway.keys.record import (
    MAX_LIMIT,
    MAX_MODELS,
    KeyLimits,
    KeyRecord,
    make_key,
    make_record,
)
from protocol.bounds import MAX_NAME

app = App(help="Create, list, limit and revoke the API keys of clients, in the file --api-keys-file.")

NEVER = "never"
MAX_DAYS = 36500
_DAYS = re.compile(r"([0-9]{1,5})d")


def _expiry(text: str) -> str:
    """Check the value of `--expires`. Raises `InvalidOption`."""
    if text != NEVER:
        _time(text)
    return text


def _time(text: str) -> datetime:
    """The time that `--expires` names. A date ends with its first second. Raises `InvalidOption`."""
    days = _DAYS.fullmatch(text)
    if days is not None and 1 <= int(days[1]) <= MAX_DAYS:
        return datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(days[1]))
    try:
        day = date.fromisoformat(text)
    except ValueError:
        text = f"--expires: must be a date such as 2030-12-31, days such as 90d, or {NEVER}, not {text[:60]!r}"
        raise InvalidOption(text) from None
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _models(names: list[str]) -> list[str]:
    if len(names) > MAX_MODELS or any(not 1 <= len(name) <= MAX_NAME for name in names):
        raise InvalidOption(f"--allow-model: must be up to {MAX_MODELS} names of 1 to {MAX_NAME} characters")
    return names


def _count(flag: str, help: str) -> Any:
    return typer.Option(flag, help=help, metavar="N", show_default=False, parser=number_of(flag, int, 0, MAX_LIMIT))


class Given(NamedTuple):
    """The limits that a command was given; None for those that it was not."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_concurrent: int | None
    models: list[str] | None
    priority: Priority | None
    expires: str | None

    def over(self, present: KeyLimits, *, any_model: bool = False) -> KeyLimits:
        """The present limits with these in their place. 0 removes one."""
        counts = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
        given: dict[str, Any] = {name: getattr(self, name) for name in counts}
        changed = {name: value or None for name, value in given.items() if value is not None}
        if self.models or any_model:
            changed["models"] = tuple(dict.fromkeys(_models(self.models or [])))
        if self.priority is not None:
            changed["priority"] = self.priority
        if self.expires is not None:
            changed["expires"] = None if self.expires == NEVER else _time(self.expires)
        return msgspec.structs.replace(present, **changed)


KeyName = Annotated[str, typer.Argument(help="Name of the client.", metavar="NAME")]
Requests = Annotated[int | None, _count("--requests-per-minute", "Requests in a minute; 0 for any number.")]
Tokens = Annotated[int | None, _count("--tokens-per-minute", "Tokens of prompts and answers in a minute; 0 for any.")]
Concurrent = Annotated[int | None, _count("--max-concurrent", "Requests at once; 0 for any number.")]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-model", help="Model that the key may use. Repeatable.", metavar="NAME", show_default="all models"
    ),
]
AnyModel = Annotated[bool, switch("--any-model", help="Allow all models again.")]
PriorityClass = Annotated[
    Priority | None,
    typer.Option("--priority", help="Priority class of its requests.", metavar="|".join(Priority), show_default=False),
]
Expires = Annotated[
    str | None,
    typer.Option(
        "--expires",
        help="Date (UTC) or days from now at which the key ends.",
        metavar="DATE|DAYSd|never",
        show_default=False,
        parser=_expiry,
    ),
]


@app.command()
@takes_settings("api_keys_file")
def create(
    settings: Settings,
    name: KeyName,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    max_concurrent: Concurrent = None,
    allow_model: Models = None,
    priority: PriorityClass = None,
    expires: Expires = None,
    admin: Annotated[bool, switch("--admin", help="Make a key for the administration alone.")] = False,
) -> None:
    """Create an API key, and print it. The file has only a digest of it."""
    given = Given(requests_per_minute, tokens_per_minute, max_concurrent, allow_model, priority, expires)
    key = make_key()
    with _errors():
        record = make_record(name, key, given.over(KeyLimits()), admin=admin)
        _file(settings).add(record)
    typer.echo(f"The key of {name} was created ({described(record)}). It is shown this once:", err=True)
    typer.echo(key)
    _say_reload()


@app.command("list")
@takes_settings("api_keys_file")
def list_(settings: Settings, as_json: Json = False) -> None:
    """List the names, limits and expiry of the keys."""
    with _errors():
        lines = _file(settings).read()
    if as_json:
        entries = [{"name": line.name} if line.record is None else _shown(line.record) for line in lines]
        typer.echo(msgspec.json.encode({"keys": entries}))
    else:
        show_keys(lines)


@app.command()
@takes_settings("api_keys_file")
def limits(
    settings: Settings,
    name: KeyName,
    requests_per_minute: Requests = None,
    tokens_per_minute: Tokens = None,
    max_concurrent: Concurrent = None,
    allow_model: Models = None,
    any_model: AnyModel = False,
    priority: PriorityClass = None,
    expires: Expires = None,
) -> None:
    """Change limits of a key. Those that are not given stay as they are."""
    given = Given(requests_per_minute, tokens_per_minute, max_concurrent, allow_model or None, priority, expires)
    if allow_model and any_model:
        raise CommandFailed("--allow-model and --any-model exclude each other")
    if not any_model and all(each is None for each in given):
        raise CommandFailed("no limit is given; `baton keys list` shows the present ones")

    def change(record: KeyRecord) -> KeyRecord:
        return msgspec.structs.replace(record, limits=given.over(record.limits, any_model=any_model)).check()

    with _errors():
        changed = _file(settings).change(name, change)
    typer.echo(f"{name}: {described(changed)}")
    _say_reload()


@app.command()
@takes_settings("api_keys_file")
def revoke(settings: Settings, name: KeyName) -> None:
    """Remove a key."""
    with _errors():
        _file(settings).remove(name)
    typer.echo(f"{name} has no key any more")
    _say_reload()


def _shown(record: KeyRecord) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    del fields["sha256"]
    return fields


def _say_reload() -> None:
    typer.echo("A running server reads the file again with `baton admin reload-keys`.", err=True)


def _file(settings: Settings) -> KeyFile:
    if not settings.api_keys_file:
        raise CommandFailed("--api-keys-file is needed: the file of the keys")
    return KeyFile(Path(settings.api_keys_file).expanduser())


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (ApiKeysInvalid, ValueError) as error:
        raise CommandFailed(str(error)) from error
