"""The command `baton`: declares the options of each command, whose implementation is imported when it runs."""

from typing import Annotated

import typer
from rich.console import Console

from baton_serve import __version__
from cli.commands import admin, keys, worker_keys
from cli.config.errors import CommandFailed
from cli.config.number import number_of
from cli.config.options import IN_PROCESS, Json, switch, takes_settings
from cli.config.panels.field import ENGINE, JOINING, LIMITS, MODEL, PLACEMENT, SERVER
from cli.config.settings import Settings, of_panels
from cli.declarations.chaos import chaos
from cli.declarations.generation import chat, generate, score
from cli.declarations.models import inspect, list_, ps, pull, rm
from cli.declarations.models import run as run_model
from cli.terminal.standard_streams import open_standard_streams
from cli.usage.typer_app import App

app = App(
    name="baton",
    help="Serve language models over HTTP from isolated worker processes, with IREE or MLX.\n\n"
    "Without MODEL, commands use a small built-in model. A setting can be a flag (--max-batch-size 8), a variable "
    "(BATON_MAX_BATCH_SIZE=8) or a line of baton.toml (max_batch_size = 8).",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(admin.app, name="admin")
app.add_typer(keys.app, name="keys")
app.add_typer(worker_keys.app, name="worker-keys")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"baton {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, switch("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Declare the options of `baton` itself."""


@app.command()
@takes_settings(*of_panels(MODEL, ENGINE, SERVER, LIMITS), logs_as="gateway")
def serve(
    settings: Settings,
    take_over: Annotated[
        bool,
        switch("--take-over", help="Take over the port of a running server once the workers are ready."),
    ] = False,
) -> None:
    """Serve a model over an OpenAI-compatible HTTP API."""
    from cli.commands.serve import run_server

    run_server(settings, take_over=take_over)


@app.command()
@takes_settings(*of_panels(MODEL, ENGINE, JOINING), "hang_timeout_s", "log_level", logs_as="worker-host")
def worker(settings: Settings) -> None:
    """Run a worker for a gateway on another machine."""
    from cli.commands.worker import run_worker

    run_worker(settings)


@app.command()
@takes_settings(
    *of_panels(MODEL, ENGINE, PLACEMENT),
    *("join", "join_timeout_s", "role", "hang_timeout_s", "api_key", "admin_key", "log_level"),
    logs_as="scale",
)
def scale(
    settings: Settings,
    url: admin.Url = admin.OF_SETTINGS,
    status: Annotated[bool, switch("--status", help="Show the workers on the cluster, and change nothing.")] = False,
    stop: Annotated[bool, switch("--stop", help="Drain all workers on the cluster and remove them.")] = False,
) -> None:
    """Place workers for a running server on a Ray cluster, and keep their number until Ctrl-C; then they stay."""
    if status and stop:
        raise CommandFailed("--status and --stop exclude each other")
    from cli.commands.scale import scale_workers, show_places, stop_workers

    if status:
        show_places(settings, url)
    elif stop:
        for name in stop_workers(settings, url):
            typer.echo(f"{name} was removed", err=True)
    else:
        scale_workers(settings, url)


app.command()(pull)
app.command("list")(list_)
app.command()(inspect)
app.command()(ps)
app.command("run")(run_model)
app.command()(rm)
app.command()(generate)
app.command()(chat)
app.command()(score)


@app.command()
@takes_settings("cache_dir")
def doctor(settings: Settings) -> None:
    """Check which backends and devices work on this machine, and what the others need."""
    from cli.commands.doctor import examine

    if not examine(settings, Console(highlight=False)):
        raise typer.Exit(1)


@app.command()
@takes_settings("api_key", "admin_key")
def top(
    settings: Settings,
    url: admin.Url = admin.OF_SETTINGS,
    interval: Annotated[
        float,
        typer.Option(
            help="Seconds between two pictures.", metavar="SECONDS", parser=number_of("--interval", float, 0.1, 3600)
        ),
    ] = 1.0,
) -> None:
    """Watch a running server: load, latency, slots, KV cache and failures. Ctrl-C ends it."""
    from cli.commands.top import show_top

    show_top(settings, url, interval, Console(highlight=False))


@app.command()
@takes_settings(*IN_PROCESS, "max_batch_size")
def bench(
    settings: Settings,
    seconds: Annotated[
        float,
        typer.Option(
            help="Seconds for each measurement.", metavar="SECONDS", parser=number_of("--seconds", float, 0.1, 600)
        ),
    ] = 3.0,
    as_json: Json = False,
) -> None:
    """Measure the tokens per second of decode (1, 4 and 8 streams) and prefill on this machine, without HTTP."""
    from cli.commands.bench import run_bench

    run_bench(settings, seconds=seconds, as_json=as_json)


app.command()(chaos)


@app.command("compile")
@takes_settings(*IN_PROCESS, "max_batch_size", "workers", "vision", "mmproj")
def compile_(
    settings: Settings,
    as_json: Json = False,
) -> None:
    """Compile all graphs of a model ahead of time, for a later `baton serve` with the same settings."""
    from cli.commands.compile import compile_model

    compile_model(settings, as_json=as_json)


def run() -> None:
    """Run the command line."""
    open_standard_streams()
    app(prog_name="baton")
