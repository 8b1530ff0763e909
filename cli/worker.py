"""`baton worker`: a worker of this machine that computes for a gateway on another."""

import signal
import socket
import sys
from pathlib import Path

import anyio

from actors.process.logs import configure_logging
from actors.supervision.deadlines import Deadlines
from actors.transport.endpoint import EndpointError, sweep
from actors.transport.keys import KeyFileError, read_key, to_z85
from actors.transport.link import CurveKeys
from cli.model import ChosenModel, check_model, worker_spec
from cli.options import CommandFailed
from cli.serve import log_level, worker_command
from cli.settings import Settings, flag
from protocol.bounds import MAX_NAME
from workers.process.remote_agent import RemoteAgent, WorkerGaveUp, run_agent

_NEEDED = {
    "join": "the address that the gateway has as --listen-workers",
    "server_key": "the public key that `baton keys show` prints on the gateway's machine",
    "key_file": "the file that `baton keys make FILE` made here",
}


def run_worker(settings: Settings) -> None:
    """Keep a worker joined until a signal, or until it cannot be kept alive. Raises `CommandFailed` in a sentence."""
    keys = worker_keys(settings)
    model = ChosenModel.choose(settings)
    spec = worker_spec(settings, model, socket.gethostname()[:MAX_NAME] or "worker")
    check_model(spec)
    configure_logging("worker-host", log_level(settings, sys.stderr.isatty()))
    sweep()
    try:
        agent = RemoteAgent(
            spec.name,
            worker_command(spec),
            settings.join,
            keys,
            deadlines=Deadlines(hang=settings.hang_timeout_s),
            signals=(signal.SIGINT, signal.SIGTERM),
        )
        anyio.run(run_agent, agent)
    except (EndpointError, WorkerGaveUp) as error:
        raise CommandFailed(str(error)) from error


def worker_keys(settings: Settings) -> CurveKeys:
    """The keys of the settings. Raises `CommandFailed` for one that is not given, or cannot be used."""
    for name, reason in _NEEDED.items():
        if not getattr(settings, name):
            raise CommandFailed(f"{flag(name)} is needed: {reason}")
    try:
        own = read_key(Path(settings.key_file).expanduser())
        return CurveKeys(own.public, own.secret, server=to_z85(settings.server_key, flag("server_key")))
    except KeyFileError as error:
        raise CommandFailed(str(error)) from error
