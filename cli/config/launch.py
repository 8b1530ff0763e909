"""What `baton serve` starts: the gateway's settings, and the commands of its workers."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, worker_spec
from cli.config.settings import Settings, flag
from gateway.fleet.launch import CommandLine, LaunchRefused, WorkerLaunch
from gateway.settings import GatewaySettings, SettingsError
from workers.checkpoints.checkpoint import CheckpointError, same_text
from workers.process.spec import WorkerSpec


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
    """The argv of one incarnation. `-P` keeps a folder `workers` in the current directory from being run instead."""
    encoded = msgspec.json.encode(spec).decode()

    def command(endpoint: str, incarnation: int) -> list[str]:
        arguments = ["--endpoint", endpoint, "--incarnation", str(incarnation), "--spec", encoded]
        return [sys.executable, "-P", "-m", "workers", *arguments]

    return command


def gateway_settings(settings: Settings) -> GatewaySettings:
    """The gateway's part of the settings, by the same names. Raises `CommandFailed` for two that contradict."""
    names = GatewaySettings.__dataclass_fields__.keys() & Settings.model_fields.keys()
    try:
        return GatewaySettings(**{name: getattr(settings, name) for name in names})
    except SettingsError as error:
        raise CommandFailed(str(error)) from error
