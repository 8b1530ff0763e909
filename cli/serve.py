"""`baton serve`: tell each worker what to run, start gateway and workers, and say when people can come."""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import msgspec
import structlog

from actors.process.logs import configure_logging
from actors.supervision.local import CommandLine
from actors.transport.endpoint import is_loopback
from baton_serve.start import module_command
from cli.client.predecessor import HttpPredecessor
from cli.model import ChosenModel, check_model, worker_spec
from cli.options import CommandFailed
from cli.settings import Settings, flag
from cli.terminal.invitation import Invitation
from cli.terminal.loading import LoadingDisplay, choose_display
from gateway.daemon import WorkersGaveUp, run_daemon
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.fleet.take_over import TakeOverFailed
from gateway.http.server import BindError
from gateway.settings import GatewaySettings, GatewaySettingsError
from workers.checkpoints.checkpoint import CheckpointError, same_text
from workers.process.spec import WorkerSpec

_log = structlog.get_logger("cli.serve")


def run_server(settings: Settings, *, take_over: bool = False) -> None:
    """Serve until a signal or until no worker is left. Raises `CommandFailed` in a sentence.

    With `take_over`, a gateway that has the port already is relieved as soon as the workers are ready.
    """
    gateway = gateway_settings(settings)
    if take_over and not settings.workers:
        raise CommandFailed(
            f"{flag('take_over')} needs a worker of its own ({flag('workers')}): those of other machines come "
            "over only when the server that leaves has let go of them"
        )
    predecessor = _predecessor(settings) if take_over else None
    launches = []
    if settings.workers or settings.standby:
        model = ChosenModel.choose(settings)
        check_model(worker_spec(settings, model))
        launches = worker_launches(settings, model)
    elif not settings.listen_workers:
        raise CommandFailed("--workers 0 leaves nobody to compute: let others join with --listen-workers")
    invitation = Invitation(settings)
    display = choose_display([launch.name for launch in launches], invitation.text)
    with display:
        # Within the display, so that log lines appear above its bars and not in them.
        configure_logging("gateway", log_level(settings, sys.stderr.isatty()))
        try:
            anyio.run(functools.partial(_serve, gateway, launches, invitation, display, predecessor))
        except (BindError, TakeOverFailed, WorkersGaveUp) as error:
            raise CommandFailed(str(error)) from error


def _predecessor(settings: Settings) -> HttpPredecessor:
    """The server that has the port, asked before anything is loaded. Raises `CommandFailed` when it would not leave."""
    predecessor = HttpPredecessor(settings)
    try:
        anyio.run(predecessor.check)
    except TakeOverFailed as error:
        raise CommandFailed(str(error)) from error
    return predecessor


async def _serve(
    gateway: GatewaySettings,
    launches: Sequence[WorkerLaunch],
    invitation: Invitation,
    display: LoadingDisplay,
    predecessor: HttpPredecessor | None,
) -> None:
    def listening(host: str, port: int) -> None:
        invitation.listening(host, port)
        if not gateway.api_key and not is_loopback(host):
            _log.warning("open_to_everybody", host=host, remedy="set BATON_API_KEY, or listen on 127.0.0.1")
        if invitation.postponed is not None:
            display.worker_changed(invitation.postponed)

    await run_daemon(
        gateway,
        launches,
        on_status=display.worker_changed,
        on_listening=listening,
        predecessor=predecessor,
    )


def log_level(settings: Settings, terminal: bool) -> str:
    """What was asked for; else a person at a terminal, who sees the display, is told of trouble only."""
    return "warning" if terminal and "log_level" not in settings.model_fields_set else settings.log_level


def worker_launches(settings: Settings, model: ChosenModel) -> list[WorkerLaunch]:
    """What the gateway starts: `settings.workers` like workers, w0, w1, ..., and after them those that stand by, which
    compute nothing and so have no share in the cores."""
    return [
        WorkerLaunch(
            spec.name,
            model.name,
            worker_command(spec),
            standby=number >= settings.workers,
            like=functools.partial(like_command, spec),
        )
        for number, spec in enumerate(worker_specs(settings, model))
    ]


def worker_specs(settings: Settings, model: ChosenModel) -> list[WorkerSpec]:
    """What each of the server's own workers is told."""
    return [
        worker_spec(settings, model, f"w{number}", settings.workers)
        for number in range(settings.workers + settings.standby)
    ]


def like_command(spec: WorkerSpec, name: str, checkpoint: str) -> CommandLine:
    """See `WorkerLaunch.like`. Another tokenizer is refused: answers that are live could not go on with it."""
    changed = msgspec.structs.replace(spec, name=name, model_path=checkpoint or spec.model_path)
    try:
        check_model(changed)
        same = spec.backend == "scripted" or same_text(Path(spec.model_path), Path(changed.model_path))
    except (CommandFailed, CheckpointError) as error:
        raise LaunchRefused(str(error)) from error
    if not same:
        text = f"{checkpoint} has another tokenizer than {spec.model_path}: live streams could not go on with it"
        raise LaunchRefused(f"{text}; start another server with it, with {flag('take_over')}")
    return worker_command(changed)


def worker_command(spec: WorkerSpec) -> Callable[[str, int], list[str]]:
    """The argv of one incarnation."""
    encoded = msgspec.json.encode(spec).decode()

    def command(endpoint: str, incarnation: int) -> list[str]:
        arguments = ["--endpoint", endpoint, "--incarnation", str(incarnation), "--spec", encoded]
        return module_command("workers", *arguments)

    return command


def gateway_settings(settings: Settings) -> GatewaySettings:
    """The gateway's part of the settings, by the same names. Raises `CommandFailed` for two that contradict."""
    names = GatewaySettings.__dataclass_fields__.keys() & Settings.model_fields.keys()
    try:
        return GatewaySettings(**{name: getattr(settings, name) for name in names})
    except GatewaySettingsError as error:
        raise CommandFailed(str(error)) from error
