"""`baton admin`: lists, drains, restarts and reloads the workers of a running server, and reloads its API keys and its
certificate."""

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from cli.config.errors import CommandFailed
from cli.config.number import number_of
from cli.config.options import switch, takes_settings
from cli.config.settings import Settings
from cli.usage.typer_app import App

if TYPE_CHECKING:
    from cli.client.administration import Administration

app = App(help="List, drain, restart and reload the workers of a running server, and reload its API keys.")

Url = Annotated[
    str,
    typer.Option("--url", help="The server.", metavar="URL", show_default="host and port of the settings"),
]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace-s",
        help="Seconds for the requests of a worker to finish, before they move to another one.",
        metavar="SECONDS",
        show_default="the server's shutdown_grace_s",
        parser=number_of("--grace-s", float, 0, 86400),
    ),
]
ModelName = Annotated[
    str, typer.Option("--model-name", help="Only workers of this model.", metavar="NAME", show_default=False)
]
Model = Annotated[str, typer.Argument(help="Name or alias of the model.", metavar="NAME")]
OF_SETTINGS = ""
"""Stands for the server on the host and port of the settings."""


@app.command()
@takes_settings("api_key", "admin_key")
def workers(settings: Settings, url: Url = OF_SETTINGS) -> None:
    """List the workers with their state, role and load."""
    from cli.terminal.worker_table import show_workers

    with _server(settings, url) as client:
        show_workers(client.get("/admin/workers")["workers"])


@app.command()
@takes_settings("api_key", "admin_key")
def drain(
    settings: Settings,
    worker: Annotated[str, typer.Argument(help="Name of the worker, such as w0.", metavar="WORKER")],
    url: Url = OF_SETTINGS,
    grace_s: Grace = None,
) -> None:
    """Stop a worker after its requests have finished or moved to another one."""
    _operate(settings, url, f"/admin/workers/{worker}/drain", grace_s)


@app.command()
@takes_settings("api_key", "admin_key")
def remove(
    settings: Settings,
    worker: Annotated[str, typer.Argument(help="Name of a worker of another machine.", metavar="WORKER")],
    url: Url = OF_SETTINGS,
    grace_s: Grace = None,
) -> None:
    """Drain a worker of another machine, forget it, and let it join no more."""
    _operate(settings, url, f"/admin/workers/{worker}/remove", grace_s)


@app.command()
@takes_settings("api_key", "admin_key")
def restart(
    settings: Settings,
    worker: Annotated[
        str, typer.Argument(help="Name of the worker; without it, all workers.", metavar="WORKER", show_default=False)
    ] = "",
    rolling: Annotated[bool, switch("--rolling", help="Have a replacement ready before each worker stops.")] = False,
    model_name: ModelName = "",
    url: Url = OF_SETTINGS,
    grace_s: Grace = None,
) -> None:
    """Restart a worker, or all workers one after the other. Streams continue without a loss."""
    if worker and (rolling or model_name):
        raise CommandFailed("--rolling and --model-name are for all workers; leave out the name of the worker")
    if worker:
        _operate(settings, url, f"/admin/workers/{worker}/restart", grace_s)
    else:
        _operate(settings, url, "/admin/restart" + ("?rolling" if rolling else ""), grace_s, model=model_name)


@app.command()
@takes_settings("api_key", "admin_key")
def reload(
    settings: Settings,
    checkpoint: Annotated[str, typer.Argument(help="Model directory on the server's machine.", metavar="CHECKPOINT")],
    model_name: ModelName = "",
    url: Url = OF_SETTINGS,
    grace_s: Grace = None,
) -> None:
    """Replace all workers with ones that serve another checkpoint. Streams continue without a loss."""
    _operate(settings, url, "/admin/reload", grace_s, model=model_name, checkpoint=checkpoint)


@app.command()
@takes_settings("api_key", "admin_key")
def models(settings: Settings, url: Url = OF_SETTINGS) -> None:
    """List the models with their state and the memory that they take."""
    from cli.terminal.model_table import show_models

    with _server(settings, url) as client:
        show_models(client.get("/admin/models")["models"])


@app.command()
@takes_settings("api_key", "admin_key")
def load(settings: Settings, model: Model, url: Url = OF_SETTINGS) -> None:
    """Load a model now, and not with its first request."""
    _operate(settings, url, f"/admin/models/{quote(model)}/load", None)


@app.command()
@takes_settings("api_key", "admin_key")
def unload(settings: Settings, model: Model, url: Url = OF_SETTINGS, grace_s: Grace = None) -> None:
    """Unload a model when its streams have ended. Its next request loads it again."""
    _operate(settings, url, f"/admin/models/{quote(model)}/unload", grace_s)


@app.command("reload-model")
@takes_settings("api_key", "admin_key")
def reload_model(settings: Settings, model: Model, url: Url = OF_SETTINGS, grace_s: Grace = None) -> None:
    """Unload a model and load it again. Requests wait meanwhile, and streams that outlast the grace go on then."""
    _operate(settings, url, f"/admin/models/{quote(model)}/reload", grace_s)


@app.command("reload-keys")
@takes_settings("api_key", "admin_key")
def reload_keys(settings: Settings, url: Url = OF_SETTINGS) -> None:
    """Read the server's API keys again (--api-keys-file). Streams continue. A key that was removed opens nothing."""
    with _server(settings, url) as client:
        keys = client.post("/admin/keys/reload")["keys"]
    for change in ("added", "removed"):
        if keys[change]:
            typer.echo(f"{change}: {', '.join(keys[change])}")
    typer.echo(f"accepted: {', '.join(keys['names'])}")


@app.command("reload-tls")
@takes_settings("api_key", "admin_key")
def reload_tls(settings: Settings, url: Url = OF_SETTINGS) -> None:
    """Read the server's certificate again (--tls-cert, --tls-key). Connections continue; new ones get it."""
    with _server(settings, url) as client:
        warning = client.post("/admin/tls/reload")["warning"]
    typer.echo("The certificate was read again.")
    if warning:
        typer.echo(f"Warning: {warning}", err=True)


def _server(settings: Settings, url: str) -> "Administration":
    from cli.client.administration import Administration  # a slow import

    return Administration.of(url, settings)


def _operate(
    settings: Settings, url: str, path: str, grace_s: float | None, *, model: str = "", checkpoint: str = ""
) -> None:
    """Run an operation to its end, and show its progress."""
    with _server(settings, url) as client:
        client.operate(path, grace_s, model=model, checkpoint=checkpoint)
