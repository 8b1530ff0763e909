"""`baton chaos`: looks at a server, asks whether it may be broken, and breaks it; or starts one to break."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from actors.transport.endpoint import is_loopback
from cli.chaos.asking import AddressRefused, Server
from cli.chaos.faults import OUTSIDE, WITHIN
from cli.chaos.own import HOST, own_server
from cli.chaos.told import Teller, Told
from cli.chaos.trial import READY_S, Trial, requests, show
from cli.chaos.watched import Watched
from cli.client.administration import Administration
from cli.client.server_url import server_url
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.settings import Settings

ALL = "all"


def chosen(names: str, *, own: bool = False) -> list[str]:
    """The faults of a comma-separated list. Raises `CommandFailed` for one that there is not, or not for a server that
    is not one's `own`."""
    there = [*OUTSIDE, *WITHIN] if own else [*OUTSIDE]
    faults = [name.strip() for name in names.split(",") if name.strip()]
    if faults == [ALL]:
        return there
    for name in faults:
        if name in WITHIN and not own:
            raise CommandFailed(f"--faults: {name!r} comes from within, and only workers that --own starts are told so")
        if name not in there:
            raise CommandFailed(f"--faults: there is no {name!r}; there are {', '.join(there)}")
    if not faults:
        raise CommandFailed(f"--faults: name some of {', '.join(there)}")
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
    """Break a server for a while and print the table; false when a client noticed more than a gap. `confirm` is asked
    before. Raises `CommandFailed`."""
    kinds = chosen(faults)
    url = server_url(url)
    try:
        server = Server.of(url, settings.api_key)
    except AddressRefused as error:
        raise CommandFailed(f"--url: {error}") from error
    if not is_loopback(server.host):
        raise CommandFailed(f"--url: faults are signals to processes of this machine, and {server.host} is another one")
    with Administration.of(url, settings) as client:
        there = Watched(client, model).workers()
        if not there:
            raise CommandFailed(f"{url} has no worker" + (f" of model {model!r}" if model else ""))
        model = there[0]["model"]
        watched = Watched(client, model)
        listed = ", ".join(f"{each['name']} (process {each['pid']})" for each in watched.local() if each["pid"])
        if not watched.active():
            raise CommandFailed(f"no worker of {model!r} serves on this machine: faults are signals to its processes")
        if not confirm(f"This breaks workers of {url} ({', '.join(kinds)}): {listed}. Its clients will wait. Go on?"):
            raise CommandFailed("nothing was done")
        trial = Trial(server, watched, requests(model, streams, tokens), seed=seed)
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
    """Start a server with these settings, break it for a while, from within too, and end it. The rest is as in
    `run_chaos`."""
    kinds = chosen(faults, own=True)
    if not settings.workers:
        raise CommandFailed("--workers 0 leaves nobody to break")
    model = ChosenModel.choose(settings)
    check_model(worker_spec(settings, model))
    hears, tells = multiprocessing.Pipe(duplex=False)
    workers = f"{settings.workers} worker(s) and {settings.standby} standby"
    console.print(f"starting a server of {model.name} with {workers}", highlight=False)
    with (
        hears,
        tells,
        own_server(settings.model_dump(), Told(hears).launches, log=log or Path(os.devnull)) as own,
        Administration.of(f"http://{HOST}:{own.port}", settings) as client,
    ):
        watched = Watched(client, model.name)
        watched.wait_until_ready(READY_S)
        server = Server(HOST, own.port, key=settings.api_key)
        asked = requests(model.name, streams, tokens)
        trial = Trial(server, watched, asked, seed=seed, tell=Teller(tells).tell)
        return _run(trial, kinds, seconds, seed, console)


def _run(trial: Trial, kinds: list[str], seconds: float, seed: int, console: Console) -> bool:
    console.print(f"seed {seed}", highlight=False)
    ended = trial.run(kinds, seconds)
    show(trial, console)
    console.print(f"Ended: {ended}.", highlight=False)
    return not any(noticed.bad for noticed in trial.noticed.values())
