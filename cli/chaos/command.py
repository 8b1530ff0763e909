"""`baton chaos`: looks at a server, asks whether it may be broken, and breaks it."""

from collections.abc import Callable

from rich.console import Console

from actors.endpoint import is_loopback
from cli.administration import Administration
from cli.chaos.asking import AddressRefused, Server
from cli.chaos.trial import FAULTS, Trial, requests, show
from cli.chaos.watched import Watched
from cli.options import CommandFailed
from cli.settings import Settings


def chosen(names: str) -> list[str]:
    """The faults of a comma-separated list. Raises `CommandFailed` for one that there is not."""
    faults = [name.strip() for name in names.split(",") if name.strip()]
    for name in faults:
        if name not in FAULTS:
            raise CommandFailed(f"--faults: there is no {name!r}; there are {', '.join(FAULTS)}")
    if not faults:
        raise CommandFailed(f"--faults: name some of {', '.join(FAULTS)}")
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
        console.print(f"seed {seed}", highlight=False)
        trial = Trial(server, watched, requests(model, streams, tokens), seed=seed)
        ended = trial.run(kinds, seconds)
        show(trial, console)
        console.print(f"Ended: {ended}.", highlight=False)
    return not any(noticed.bad for noticed in trial.noticed.values())
