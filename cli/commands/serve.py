"""`baton serve`: starts the gateway and its workers, and shows when the server is ready."""

import functools
import os
import sys

import anyio
import structlog

from actors.process.logs import configure_logging
from actors.process.service_manager import ServiceManager
from actors.supervision.worker import WorkerState, WorkerStatus
from actors.transport.endpoint import is_loopback
from cli.client.predecessor import HttpPredecessor
from cli.client.server_url import socket_path
from cli.config.errors import CommandFailed
from cli.config.launch import gateway_settings
from cli.config.prefix_directory import PrefixTierPlan
from cli.config.served_models import ServedModels
from cli.config.settings import Settings, flag
from cli.config.several.hub_fetch import fetch_adapter
from cli.terminal.loading import LoadingDisplay, choose_display
from cli.terminal.ready_message import ReadyMessage
from gateway.admin.adapters.adapter_state import AdapterState, AdapterStateInvalid
from gateway.daemon import WorkersGaveUp, run_daemon
from gateway.fleet.take_over import TakeOverFailed
from gateway.garbage_collection import collect_rarely
from gateway.host_names import ANY
from gateway.http.listener import BindError
from gateway.http.tls import Tls, TlsInvalid, tls_of
from gateway.keys.api_keys import ApiKeys
from gateway.keys.key_file import ApiKeysInvalid
from gateway.responses.store.stored import StoreUnavailable
from gateway.settings import GatewaySettings
from gateway.shared.opening import SharingUnavailable
from gateway.tracing.opening import TracesUnavailable

_log = structlog.get_logger("cli.commands.serve")


def run_server(settings: Settings, *, take_over: bool = False) -> None:
    """Serve until a signal arrives or every worker is given up. Raises `CommandFailed`.

    With `take_over`, a running gateway hands over its port as soon as the workers are ready.
    """
    gateway = gateway_settings(settings)
    try:
        keys, tls = ApiKeys(gateway), tls_of(gateway)
    except (ApiKeysInvalid, TlsInvalid) as error:
        raise CommandFailed(str(error)) from error
    if take_over and not settings.workers:
        raise CommandFailed(
            f"{flag('take_over')} needs a worker of its own ({flag('workers')} 1 or more): remote workers join only "
            "after the other server has released them"
        )
    predecessor, process = _predecessor(settings) if take_over else (None, 0)
    if gateway.lora_state_dir:
        # What is wrong with it is said before a model is loaded.
        try:
            AdapterState(gateway.lora_state_dir, predecessor=process).close()
        except AdapterStateInvalid as error:
            raise CommandFailed(str(error)) from error
    tier = PrefixTierPlan.of(settings)
    settings = tier.settings
    served = ServedModels.of(settings, predecessor=process)
    if not served.launches and not settings.listen_workers:
        raise CommandFailed("--workers 0 needs --listen-workers, so that workers on other machines can join")
    ready_message = ReadyMessage(settings, served.terms if settings.models else ())
    at_start = [launch.name for launch in served.launches if not launch.on_demand]
    display = choose_display(at_start, ready_message)
    with display:
        # After the display has started, so that log lines appear above its bars and not in them.
        configure_logging("gateway", log_level(settings, sys.stderr.isatty()))
        for each in served.terms if settings.models else ():
            terms = {"load": each.load, "bytes": each.bytes, "context": each.context}
            _log.info("model", model=each.name, **terms, model_context=each.model_context, bound=each.context_bound)
        try:
            with tier.opened():
                anyio.run(functools.partial(_serve, gateway, served, ready_message, display, predecessor, keys, tls))
        except (
            AdapterStateInvalid,
            BindError,
            SharingUnavailable,
            StoreUnavailable,
            TakeOverFailed,
            TracesUnavailable,
            WorkersGaveUp,
        ) as error:
            raise CommandFailed(str(error)) from error


def _predecessor(settings: Settings) -> tuple[HttpPredecessor, int]:
    """Check before anything is loaded that the server on the port would hand over. Returns its client, and its process
    or 0 if the port is free. Raises `CommandFailed`."""
    predecessor = HttpPredecessor(settings)
    try:
        return predecessor, anyio.run(predecessor.check)
    except TakeOverFailed as error:
        raise CommandFailed(str(error)) from error


async def _serve(
    gateway: GatewaySettings,
    served: ServedModels,
    ready_message: ReadyMessage,
    display: LoadingDisplay,
    predecessor: HttpPredecessor | None,
    keys: ApiKeys,
    tls: Tls | None,
) -> None:
    manager = ServiceManager(os.environ)

    def changed(status: WorkerStatus) -> None:
        display.worker_changed(status)
        if status.state is WorkerState.READY and ready_message.listens:
            manager.ready()

    def listening(host: str, port: int) -> None:
        ready_message.listening(host, port)
        if not keys and not is_loopback(host) and not socket_path(host):
            _log.warning("open_to_everybody", host=host, remedy="set BATON_API_KEY, or listen on 127.0.0.1")
        if not keys and ANY in gateway.cors_origins:
            _log.warning("open_to_all_pages", remedy="set BATON_API_KEY, or list the origins")
        if ready_message.postponed is not None:
            changed(ready_message.postponed)
        if all(launch.on_demand for launch in served.launches):  # or workers that join may be started after this unit
            manager.ready()
            if served.launches:
                display.ready_on_demand([each.name for each in served.terms])

    collect_rarely()
    await run_daemon(
        gateway,
        served.launches,
        on_status=changed,
        on_listening=listening,
        manager=manager,
        predecessor=predecessor,
        keys=keys,
        tls=tls,
        models=served.terms,
        memory_budget=served.budget,
        fetch_adapter=fetch_adapter,
    )


def log_level(settings: Settings, terminal: bool) -> str:
    """Return the level of the settings; by default only warnings are logged on a terminal, which shows the display."""
    return "warning" if terminal and "log_level" not in settings.model_fields_set else settings.log_level
