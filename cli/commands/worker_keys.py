"""`baton worker-keys`: the keys with which a gateway and its workers on other machines authenticate each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from actors.transport.allow_list import AllowList
from actors.transport.join_tokens import MAX_VALID_S, VALID_S, JoinTokens
from actors.transport.keys import GATEWAY_KEY, KeyFileError, from_z85, make_gateway_key, make_key, read_key
from cli.config.errors import CommandFailed
from cli.config.number import number_of
from cli.config.options import switch, takes_settings
from cli.config.settings import Settings
from cli.usage.typer_app import App

app = App(
    help="Manage the keys with which a gateway and its workers on other machines authenticate each other. "
    "Secret keys are never printed.",
)

KeyFile = Annotated[Path, typer.Argument(help="File of the secret key.", metavar="FILE")]
WorkerName = Annotated[str, typer.Argument(help="Name of the worker on the gateway.", metavar="NAME")]


@app.command()
@takes_settings("keys_dir")
def init(settings: Settings) -> None:
    """Create the gateway's secret key in --keys-dir, and print its public key."""
    with _key_errors():
        public = make_gateway_key(_directory(settings)).public_text
    typer.echo("The gateway's key was created. Give workers its public key as --server-key:", err=True)
    typer.echo(public)


@app.command()
@takes_settings()
def make(settings: Settings, file: KeyFile) -> None:
    """Create a worker's secret key in a file that only you can read, and print its public key."""
    with _key_errors():
        public = make_key(file).public_text
    typer.echo(
        "The key was created. Allow it on the gateway's machine with `baton worker-keys add NAME KEY`:", err=True
    )
    typer.echo(public)


@app.command()
@takes_settings("keys_dir")
def show(
    settings: Settings,
    file: Annotated[
        Path | None, typer.Argument(help="File of the secret key.", metavar="FILE", show_default="the gateway's")
    ] = None,
) -> None:
    """Print the public key that belongs to a secret key."""
    with _key_errors():
        typer.echo(read_key(file or _directory(settings) / GATEWAY_KEY).public_text)


@app.command("list")
@takes_settings("keys_dir")
def list_(settings: Settings) -> None:
    """List the public keys and names of the workers that may join. The exit status is 1 if a file is invalid."""
    with _key_errors():
        listed = AllowList(_directory(settings)).read()
        for key, name in listed.names.items():
            typer.echo(f"{from_z85(key)}  {name}")
        if not listed.names:
            typer.echo("No worker may join yet. `baton worker-keys add NAME KEY` allows one.", err=True)
        if listed.refused:
            raise CommandFailed("\n".join(listed.refused.values()))


@app.command()
@takes_settings("keys_dir")
def add(
    settings: Settings,
    name: WorkerName,
    key: Annotated[str, typer.Argument(help="Public key of the worker, 64 hexadecimal digits.", metavar="KEY")],
) -> None:
    """Allow a worker to join. A running gateway accepts it at once."""
    with _key_errors():
        file = AllowList(_directory(settings)).add(name, key)
    typer.echo(f"{name} may join from now on: {file}")


@app.command()
@takes_settings("keys_dir")
def token(
    settings: Settings,
    name: WorkerName,
    valid_s: Annotated[
        float,
        typer.Option(
            "--valid-s",
            help="Seconds in which it can be used.",
            metavar="SECONDS",
            parser=number_of("--valid-s", float, 1, MAX_VALID_S),
        ),
    ] = VALID_S,
    replace: Annotated[
        bool, switch("--replace", help="Let its worker take the place of the one that has the name.")
    ] = False,
) -> None:
    """Print a one-time token with which one worker registers a key of its own, under this name."""
    with _key_errors():
        folder = _directory(settings)
        if not replace and name in AllowList(folder).read().names.values():
            raise CommandFailed(f"{name} may join already; with --replace, the worker with the token takes its place")
        text = JoinTokens(folder).make(name, valid_s)
    typer.echo(f"Valid once, for {valid_s:g} s. Give it to `baton worker` as BATON_JOIN_TOKEN:", err=True)
    typer.echo(text)


@app.command()
@takes_settings("keys_dir")
def remove(settings: Settings, name: WorkerName) -> None:
    """Forbid a worker to join. If it is connected, it is disconnected within seconds, and its streams move."""
    with _key_errors():
        folder = _directory(settings)
        had_token = JoinTokens(folder).revoke(name)
        try:
            AllowList(folder).remove(name)
        except KeyFileError:
            if not had_token:
                raise
    typer.echo(f"{name} may not join any more")


def _directory(settings: Settings) -> Path:
    if not settings.keys_dir:
        raise CommandFailed("--keys-dir is needed: the directory with the gateway's keys")
    return Path(settings.keys_dir).expanduser()


@contextmanager
def _key_errors() -> Iterator[None]:
    try:
        yield
    except KeyFileError as error:
        raise CommandFailed(str(error)) from error
