"""`baton worker`: runs a worker on this machine for gateways on others."""

import os
import signal
import socket
import sys
from pathlib import Path

import anyio

from actors.join.join_keys import JoinKeys
from actors.process.health_file import HealthFile
from actors.process.logs import configure_logging
from actors.process.service_manager import ServiceManager
from actors.supervision.deadlines import Deadlines
from actors.transport.endpoint import EndpointError, sweep
from actors.transport.join_tokens import parse_token
from actors.transport.keys import KeyFileError, KeyPair, make_key, read_key, to_z85
from actors.transport.link import CurveKeys
from cli.commands.serve import log_level
from cli.config.errors import CommandFailed
from cli.config.join_address import check_join_addresses
from cli.config.launch import check_rows, check_sparse, worker_command
from cli.config.model import ChosenModel, check_model, with_chosen_context, worker_spec
from cli.config.prefix_directory import PrefixTierPlan
from cli.config.settings import Settings, flag
from protocol.bounds import MAX_NAME
from workers.process.gateways.address import GatewayAddress
from workers.process.remote_agent import RemoteAgent, WorkerGaveUp, run_agent

_NEEDED = {
    "join": "the address that the gateway was given as --listen-workers",
    "server_key": "the public key that `baton worker-keys show` prints on the gateway's machine",
    "key_file": "the file that `baton worker-keys make FILE` created on this machine, unless there is a --join-token",
}


def run_worker(settings: Settings) -> None:
    """Keep a worker joined until a signal arrives. Raises `CommandFailed`, also if the worker is given up."""
    if settings.role == "prefill":
        check_rows(settings, "role")
    check_sparse(settings)
    gateways = gateways_of(settings)
    tier = PrefixTierPlan.of(settings)
    model = ChosenModel.choose(settings)
    spec = worker_spec(tier.settings, model, socket.gethostname()[:MAX_NAME] or "worker")
    check_model(spec)
    spec = with_chosen_context(spec)
    configure_logging("worker-host", log_level(settings, sys.stderr.isatty()))
    tier.report()
    sweep()
    try:
        agent = RemoteAgent(
            spec.name,
            worker_command(spec),
            gateways,
            join_timeout_s=settings.join_timeout_s,
            deadlines=Deadlines(hang=settings.hang_timeout_s),
            signals=(signal.SIGINT, signal.SIGTERM),
            manager=service_manager(settings),
        )
        anyio.run(run_agent, agent)
    except (EndpointError, WorkerGaveUp) as error:
        raise CommandFailed(str(error)) from error


def gateways_of(settings: Settings) -> list[GatewayAddress]:
    """Return the gateways that the settings name, with the keys for each. With a join token, a key file is made if it
    does not exist, and without one the key is kept in memory only. Raises `CommandFailed` if one is missing or
    invalid."""
    for name, reason in _NEEDED.items():
        if not getattr(settings, name) and not (name == "key_file" and settings.join_token):
            raise CommandFailed(f"{flag(name)} is needed: {reason}")
    addresses, servers = settings.join, settings.server_key
    check_join_addresses(addresses)
    if len(servers) not in (1, len(addresses)):
        raise CommandFailed(
            f"{flag('server_key')}: give one key for all gateways, or one for each {flag('join')}, not {len(servers)} "
            f"keys for {len(addresses)} gateways"
        )
    if settings.join_token and len(addresses) > 1:
        raise CommandFailed(
            f"{flag('join_token')}: a token is valid for one gateway, and {flag('join')} names {len(addresses)}; use "
            f"{flag('key_file')} alone, with a key that all of them know"
        )
    try:
        known = [to_z85(server, flag("server_key")) for server in servers]
        token = parse_token(settings.join_token, flag("join_token")) if settings.join_token else None
        own = _own_key(settings.key_file, make=token is not None)
    except KeyFileError as error:
        raise CommandFailed(str(error)) from error
    return [
        GatewayAddress(address, _keys_for(known[number % len(known)], own, token, kept=bool(settings.key_file)))
        for number, address in enumerate(addresses)
    ]


def _keys_for(server: str, own: KeyPair, token: KeyPair | None, *, kept: bool) -> JoinKeys:
    return JoinKeys(
        CurveKeys(own.public, own.secret, server=server),
        None if token is None else CurveKeys(token.public, token.secret, server=server),
        kept=kept,
    )


def _own_key(file: str, *, make: bool) -> KeyPair:
    if not file:
        return KeyPair.generate()
    path = Path(file).expanduser()
    return make_key(path) if make and not path.exists() else read_key(path)


def service_manager(settings: Settings) -> ServiceManager:
    """Return what learns that the worker is ready. Raises `CommandFailed` for an unusable health file."""
    if not settings.health_file:
        return ServiceManager(os.environ)
    file = Path(settings.health_file).expanduser().absolute()
    if not file.parent.is_dir():
        text = f"the folder {file.parent} does not exist: make it, or name another file"
        raise CommandFailed(f"{settings.sources.get('health_file', flag('health_file'))}: {text}")
    try:
        return HealthFile(os.environ, file)
    except OSError as error:
        raise CommandFailed(f"{flag('health_file')}: {file} cannot be removed: {error.strerror}") from error
