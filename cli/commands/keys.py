"""`baton keys`: the keys by which a gateway and its workers on other machines know each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from actors.transport.allow_list import AllowList
from actors.transport.keys import GATEWAY_KEY, KeyFileError, from_z85, make_gateway_key, make_key, read_key
from cli.config.errors import CommandFailed
from cli.config.options import takes_settings
from cli.config.settings import Settings

app = typer.Typer(
    help="Keys of the gateway and of its workers on other machines. Public keys are printed; secret ones never are.",
    no_args_is_help=True,
)

KeyFile = Annotated[Path, typer.Argument(help="The file of a secret key.", metavar="FILE")]
WorkerName = Annotated[str, typer.Argument(help="What the gateway calls the worker.", metavar="NAME")]


@app.command()
@takes_settings("keys_dir")
def init(settings: Settings) -> None:
    """Make the gateway's folder with its secret key, and print the public one."""
    with _sentences():
        typer.echo(make_gateway_key(_folder(settings)).public_text)


@app.command()
@takes_settings()
def make(settings: Settings, file: KeyFile) -> None:
    """Make a worker's secret key, in a file that only you can read, and print the public one."""
    with _sentences():
        typer.echo(make_key(file).public_text)


@app.command()
@takes_settings("keys_dir")
def show(
    settings: Settings,
    file: Annotated[
        Path | None, typer.Argument(help="The file of a secret key.", metavar="FILE", show_default="the gateway's")
    ] = None,
) -> None:
    """Print the public key of a secret one."""
    with _sentences():
        typer.echo(read_key(file or _folder(settings) / GATEWAY_KEY).public_text)


@app.command("list")
@takes_settings("keys_dir")
def list_(settings: Settings) -> None:
    """List the workers that may join, with their public keys. Ends with status 1 when a file of the list is none."""
    with _sentences():
        listed = AllowList(_folder(settings)).read()
        for key, name in listed.names.items():
            typer.echo(f"{from_z85(key)}  {name}")
        if listed.refused:
            raise CommandFailed("\n".join(listed.refused.values()))


@app.command()
@takes_settings("keys_dir")
def add(
    settings: Settings,
    name: WorkerName,
    key: Annotated[str, typer.Argument(help="Its public key, 64 hexadecimal digits.", metavar="KEY")],
) -> None:
    """Let a worker join, at once."""
    with _sentences():
        file = AllowList(_folder(settings)).add(name, key)
    typer.echo(f"{name} may join from now on: {file}")


@app.command()
@takes_settings("keys_dir")
def remove(settings: Settings, name: WorkerName) -> None:
    """Let a worker join no more; one that is there is cut off within seconds, and its streams go on elsewhere."""
    with _sentences():
        AllowList(_folder(settings)).remove(name)


def _folder(settings: Settings) -> Path:
    if not settings.keys_dir:
        raise CommandFailed("say which folder has the gateway's keys: --keys-dir")
    return Path(settings.keys_dir).expanduser()


@contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except KeyFileError as error:
        raise CommandFailed(str(error)) from error
