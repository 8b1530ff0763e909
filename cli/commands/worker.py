"""`baton worker`: runs a worker on this machine for a gateway on another one."""

import os
import signal
import socket
import sys
from pathlib import Path

import anyio

from actors.join.join_keys import JoinKeys
from actors.process.logs import configure_logging
from actors.process.service_manager import ServiceManager
from actors.supervision.deadlines import Deadlines
from actors.transport.endpoint import EndpointError, check_address, sweep
from actors.transport.join_tokens import parse_token
from actors.transport.keys import KeyFileError, KeyPair, make_key, read_key, to_z85
from actors.transport.link import CurveKeys
from cli.commands.serve import log_level
from cli.config.errors import CommandFailed
from cli.config.launch import worker_command
from cli.config.model import ChosenModel, check_model, with_chosen_context, worker_spec
from cli.config.settings import Settings, flag
from protocol.bounds import MAX_NAME
from workers.process.remote_agent import RemoteAgent, WorkerGaveUp, run_agent

_NEEDED = {
    "join": "the address that the gateway was given as --listen-workers",
    "server_key": "the public key that `baton worker-keys show` prints on the gateway's machine",
    "key_file": "the file that `baton worker-keys make FILE` created on this machine, unless there is a --join-token",
}


def run_worker(settings: Settings) -> None:
    """Keep a worker joined until a signal arrives. Raises `CommandFailed`, also if the worker is given up."""
    keys = worker_keys(settings)
    model = ChosenModel.choose(settings)
    spec = worker_spec(settings, model, socket.gethostname()[:MAX_NAME] or "worker")
    check_model(spec)
    spec = with_chosen_context(spec)
    configure_logging("worker-host", log_level(settings, sys.stderr.isatty()))
    sweep()
    try:
        agent = RemoteAgent(
            spec.name,
            worker_command(spec),
            settings.join,
            keys,
            join_timeout_s=settings.join_timeout_s,
            deadlines=Deadlines(hang=settings.hang_timeout_s),
            signals=(signal.SIGINT, signal.SIGTERM),
            manager=ServiceManager(os.environ),
        )
        anyio.run(run_agent, agent)
    except (EndpointError, WorkerGaveUp) as error:
        raise CommandFailed(str(error)) from error


def worker_keys(settings: Settings) -> JoinKeys:
    """Read the keys that the settings name. With a join token, a key file is made if it does not exist, and without one
    the key is kept in memory only. Raises `CommandFailed` if one is missing or invalid."""
    for name, reason in _NEEDED.items():
        if not getattr(settings, name) and not (name == "key_file" and settings.join_token):
            raise CommandFailed(f"{flag(name)} is needed: {reason}")
    _check_join(settings.join)
    try:
        server = to_z85(settings.server_key, flag("server_key"))
        token = parse_token(settings.join_token, flag("join_token")) if settings.join_token else None
        own = _own_key(settings.key_file, make=token is not None)
    except KeyFileError as error:
        raise CommandFailed(str(error)) from error
    return JoinKeys(
        CurveKeys(own.public, own.secret, server=server),
        None if token is None else CurveKeys(token.public, token.secret, server=server),
        kept=bool(settings.key_file),
    )


def _own_key(file: str, *, make: bool) -> KeyPair:
    if not file:
        return KeyPair.generate()
    path = Path(file).expanduser()
    return make_key(path) if make and not path.exists() else read_key(path)


def _check_join(address: str) -> None:
    try:
        check_address(address, secured=True)
    except EndpointError:
        valid = False
    else:
        valid = address.startswith("tcp://")
    if not valid:
        raise CommandFailed(f"--join: write tcp://HOST:PORT, not {address!r}")
