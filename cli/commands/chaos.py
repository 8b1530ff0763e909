"""`baton chaos`: breaks the workers of a running server, or of a server that it starts."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from actors.transport.endpoint import is_loopback
from cli.chaos.fault_injection import FaultReceiver, FaultSender
from cli.chaos.faults import PLANNED, SIGNALS
from cli.chaos.http_client import InvalidAddress, ServerAddress
from cli.chaos.report import print_report
from cli.chaos.trial import READY_S, Trial
from cli.chaos.workers_watcher import WorkersWatcher
from cli.chaos.workload import streaming_requests
from cli.client.administration import Administration
from cli.client.owned_server import HOST, owned_server
from cli.client.server_url import server_url, socket_path
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.settings import Settings

ALL = "all"


def choose_faults(names: str, *, own: bool = False) -> list[str]:
    """Parse a comma-separated list of faults. Raises `CommandFailed` if one is unknown, or needs an owned server."""
    known = [*SIGNALS, *PLANNED] if own else [*SIGNALS]
    faults = [name.strip() for name in names.split(",") if name.strip()]
    if faults == [ALL]:
        return known
    for name in faults:
        if name in PLANNED and not own:
            raise CommandFailed(f"--faults: {name!r} comes from within a worker, which needs --own")
        if name not in known:
            raise CommandFailed(f"--faults: there is no {name!r}; choose from {', '.join(known)}")
    if not faults:
        raise CommandFailed(f"--faults: name some of {', '.join(known)}")
    return faults


def run_chaos(
    settings: Settings,
    *,
    url: str,
    faults: str,
    streams: int,
    tokens: int,
    seconds: float,
    seed: int,
    model: str,
    confirm: Callable[[str], bool],
    console: Console,
) -> bool:
    """Break a running server for a while and print the table, if `confirm` returns True for the question.

    Returns False if a client noticed more than a gap. Raises `CommandFailed`.
    """
    kinds = choose_faults(faults)
    if socket_path(url):
        raise CommandFailed("--url: baton chaos sends its requests to a port, and not to a Unix socket")
    url = server_url(url)
    try:
        server = ServerAddress.of(url, settings.api_key)
    except InvalidAddress as error:
        raise CommandFailed(f"--url: {error}") from error
    if not is_loopback(server.host):
        raise CommandFailed(
            f"--url: faults are signals to processes of this machine, and {server.host} is another one; "
            "run `baton chaos` there"
        )
    with Administration.of(url, settings) as client:
        found = WorkersWatcher(client, model).workers()
        if not found:
            raise CommandFailed(f"{url} has no worker" + (f" of model {model!r}" if model else ""))
        model = found[0]["model"]
        watcher = WorkersWatcher(client, model)
        listed = ", ".join(f"{each['name']} (process {each['pid']})" for each in watcher.local() if each["pid"])
        if not watcher.active():
            raise CommandFailed(
                f"no worker of {model!r} on this machine is ready to be broken; `baton admin workers` shows their state"
            )
        question = (
            f"This breaks workers of {url} ({', '.join(kinds)}): {listed}. Its clients will have to wait. Continue?"
        )
        if not confirm(question):
            raise CommandFailed("nothing was done")
        trial = Trial(server, watcher, streaming_requests(model, streams, tokens), seed=seed)
        return _run(trial, kinds, seconds, seed, console)


def run_own(
    settings: Settings,
    *,
    faults: str,
    streams: int,
    tokens: int,
    seconds: float,
    seed: int,
    log: Path | None,
    console: Console,
) -> bool:
    """Start a server with these settings, break it for a while, also from within, and stop it. See `run_chaos`."""
    kinds = choose_faults(faults, own=True)
    if not settings.workers:
        raise CommandFailed("--workers 0 leaves no worker to break; give 1 or more")
    model = ChosenModel.choose(settings)
    check_model(worker_spec(settings, model))
    receiving, sending = multiprocessing.Pipe(duplex=False)
    workers = f"{settings.workers} worker(s) and {settings.standby} standby"
    console.print(f"starting a server of {model.name} with {workers}", highlight=False)
    with (
        receiving,
        sending,
        owned_server(settings.model_dump(), FaultReceiver(receiving).launches, log=log or Path(os.devnull)) as own,
        Administration.of(f"http://{HOST}:{own.port}", settings) as client,
    ):
        watcher = WorkersWatcher(client, model.name)
        watcher.wait_until_ready(READY_S)
        server = ServerAddress(HOST, own.port, key=settings.api_key)
        requests = streaming_requests(model.name, streams, tokens)
        trial = Trial(server, watcher, requests, seed=seed, plan_fault=FaultSender(sending).send)
        return _run(trial, kinds, seconds, seed, console)


def _run(trial: Trial, kinds: list[str], seconds: float, seed: int, console: Console) -> bool:
    console.print(f"seed {seed}", highlight=False)
    ended = trial.run(kinds, seconds)
    print_report(trial, console)
    console.print(f"Ended: {ended}.", highlight=False)
    return not any(impact.bad for impact in trial.impacts.values())
