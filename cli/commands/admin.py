"""`baton admin`: look at the workers of a running server, and drain, restart or reload them."""

from typing import Annotated

import typer

from cli.config.errors import CommandFailed
from cli.config.options import switch, takes_settings
from cli.config.settings import Settings

app = typer.Typer(help="Look at and change the workers of a running server.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", help="The server.", metavar="URL")]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace-s", help="Seconds for what a worker has to finish before it goes on elsewhere.", min=0, max=86400
    ),
]
ModelName = Annotated[str, typer.Option("--model-name", help="The workers of this model alone.", show_default=False)]
LOCAL = "http://127.0.0.1:8000"


@app.command()
@takes_settings("api_key", "admin_key")
def workers(settings: Settings, url: Url = LOCAL) -> None:
    """List the workers."""
    from cli.client.administration import Administration
    from cli.terminal.worker_table import show_workers

    with Administration.of(url, settings) as client:
        show_workers(client.get("/admin/workers")["workers"])


@app.command()
@takes_settings("api_key", "admin_key")
def drain(
    settings: Settings,
    worker: Annotated[str, typer.Argument(help="Its name, such as w0.")],
    url: Url = LOCAL,
    grace_s: Grace = None,
) -> None:
    """Let a worker finish what it has, and stop it."""
    from cli.client.administration import Administration

    with Administration.of(url, settings) as client:
        client.operate(f"/admin/workers/{worker}/drain", grace_s)


@app.command()
@takes_settings("api_key", "admin_key")
def restart(
    settings: Settings,
    worker: Annotated[str, typer.Argument(help="Its name; without one, all of them.", show_default=False)] = "",
    rolling: Annotated[bool, switch("--rolling", help="Have another worker ready before one leaves.")] = False,
    model_name: ModelName = "",
    url: Url = LOCAL,
    grace_s: Grace = None,
) -> None:
    """Start a worker again, or all, one after the other. No stream is cut."""
    if worker and (rolling or model_name):
        raise CommandFailed("--rolling and --model-name are for all workers, not for one")
    from cli.client.administration import Administration

    with Administration.of(url, settings) as client:
        if worker:
            client.operate(f"/admin/workers/{worker}/restart", grace_s)
        else:
            client.operate("/admin/restart" + ("?rolling" if rolling else ""), grace_s, model=model_name)


@app.command()
@takes_settings("api_key", "admin_key")
def reload(
    settings: Settings,
    checkpoint: Annotated[str, typer.Argument(help="A model directory on the server's machine.")],
    model_name: ModelName = "",
    url: Url = LOCAL,
    grace_s: Grace = None,
) -> None:
    """Replace all workers by ones that serve another checkpoint. No stream is cut."""
    from cli.client.administration import Administration

    with Administration.of(url, settings) as client:
        client.operate("/admin/reload", grace_s, model=model_name, checkpoint=checkpoint)
