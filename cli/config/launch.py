"""The gateway's settings and the commands that start its workers."""

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from actors.supervision.local import CommandLine
from baton_serve.start import module_command
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel, check_model, with_chosen_context, worker_spec
from cli.config.settings import Settings, flag
from gateway.fleet.launch import LaunchRefused, WorkerLaunch
from gateway.settings import GatewaySettings, GatewaySettingsError
from protocol.events import Phases
from workers.checkpoints.checkpoint import CheckpointError, same_text
from workers.process.spec import WorkerSpec


def worker_launches(
    settings: Settings,
    model: ChosenModel,
    first: int = 0,
    *,
    on_demand: bool = False,
    chosen: WorkerSpec | None = None,
) -> list[WorkerLaunch]:
    """Return the workers that the gateway starts: w0, w1 and so on from `first`, then the standby workers. `chosen`: as
    in `worker_specs`.

    Standby workers get no share of the cores, since they compute nothing.
    """
    return [
        WorkerLaunch(
            spec.name,
            model.name,
            worker_command(spec),
            standby=number >= settings.workers,
            like=functools.partial(like_command, spec),
            on_demand=on_demand,
        )
        for number, spec in enumerate(worker_specs(settings, model, first, chosen))
    ]


def worker_specs(
    settings: Settings, model: ChosenModel, first: int = 0, chosen: WorkerSpec | None = None
) -> list[WorkerSpec]:
    """Return the spec of each of the server's own workers for a model. What differs from the settings is that of
    `chosen`, by default the context that is chosen now."""
    places = [*range(settings.workers), *[None] * settings.standby]
    if chosen is None:
        chosen = with_chosen_context(worker_spec(settings, model, workers=settings.workers))
    return [
        replace(
            worker_spec(settings, model, f"w{first + number}", settings.workers, place),
            role=role_of(settings, number),
            chosen_context=chosen.chosen_context,
            kv_most=chosen.kv_most,
            predecessor=chosen.predecessor,
        )
        for number, place in enumerate(places)
    ]


def role_of(settings: Settings, number: int) -> Phases:
    """Return the role of one of the server's workers by its place among them: the last ones before the standbys are for
    prompts."""
    return "prefill" if settings.workers - settings.prefill_workers <= number < settings.workers else "both"


def check_prefill_workers(settings: Settings) -> None:
    """Raises `CommandFailed` if no worker would be left to go on with a stream, or if none could take its rows."""
    wanted, workers = settings.prefill_workers, settings.workers
    if not wanted:
        return
    if wanted > workers:
        raise CommandFailed(f"{flag('prefill_workers')}: {wanted} of {workers} {flag('workers')} are too many")
    if wanted == workers and not settings.listen_workers:
        raise CommandFailed(
            f"{flag('prefill_workers')}: {wanted} of {workers} {flag('workers')} leave none to go on with the streams; "
            f"set {flag('workers')} to {wanted + 1} or more, or let others join ({flag('listen_workers')})"
        )
    check_rows(settings, "prefill_workers")


def check_rows(settings: Settings, name: str) -> None:
    """Raises `CommandFailed` for a prefill worker without the prefix cache, since rows go from one to another."""
    if not settings.prefix_cache:
        raise CommandFailed(f"{flag(name)}: prefill workers need the prefix cache, which --no-prefix-cache turns off")


def check_sparse(settings: Settings) -> None:
    """Raises `CommandFailed` for what only sparse prefill reads, if no model has that."""
    if settings.sparse_prefill or any(model.sparse_prefill for model in settings.models):
        return
    for name in ("sparse_prefill_tokens", "sparse_prefill_keep"):
        if name in settings.sources:
            raise CommandFailed(
                f"{settings.sources[name]}: has no effect without {flag('sparse_prefill')}: set both, or leave it out"
            )


def like_command(spec: WorkerSpec, name: str, checkpoint: str) -> CommandLine:
    """See `WorkerLaunch.like`. Another tokenizer is refused, since live streams could not continue with it."""
    place = spec.place if name == spec.name else None  # an extra worker runs beside the one that it is like
    changed = replace(spec, name=name, model_path=checkpoint or spec.model_path, place=place)
    try:
        check_model(changed)
        if checkpoint:
            changed = with_chosen_context(changed)
        same = spec.backend == "scripted" or same_text(Path(spec.model_path), Path(changed.model_path))
    except (CommandFailed, CheckpointError) as error:
        raise LaunchRefused(str(error)) from error
    if not same:
        raise LaunchRefused(
            f"{checkpoint} has another tokenizer than {spec.model_path}, with which live streams could not continue; "
            f"start another server with it and {flag('take_over')}"
        )
    return worker_command(changed)


def worker_command(spec: WorkerSpec) -> Callable[[str, int], list[str]]:
    """Return a function that makes the argv of an incarnation from its endpoint and its number."""
    encoded = msgspec.json.encode(spec).decode()

    def command(endpoint: str, incarnation: int) -> list[str]:
        arguments = ["--endpoint", endpoint, "--incarnation", str(incarnation), "--spec", encoded]
        return module_command("workers", *arguments)

    return command


def gateway_settings(settings: Settings) -> GatewaySettings:
    """Return the gateway's part of the settings. Raises `CommandFailed` for settings that contradict each other, and
    for folders of adapters that are not there."""
    names = GatewaySettings.__dataclass_fields__.keys() & Settings.model_fields.keys()
    try:
        found = GatewaySettings(**{name: getattr(settings, name) for name in names})
    except GatewaySettingsError as error:
        raise CommandFailed(error.text(lambda name: settings.sources.get(name, flag(name)))) from error
    check_lora_dirs(settings)
    return found


def check_lora_dirs(settings: Settings) -> None:
    """Raises `CommandFailed` for a folder of adapters that is not there: no request could load one from it."""
    source = settings.sources.get("lora_dirs", flag("lora_dirs"))
    for path in settings.lora_dirs:
        folder = Path(path).expanduser().absolute()
        try:
            if not folder.is_dir():
                what = "is a file" if folder.exists() else "does not exist"
                raise CommandFailed(f"{source}: the folder {folder} {what}: make it, or name another one")
        except OSError as error:  # of a folder above it that may not be searched
            raise CommandFailed(f"{source}: {folder} cannot be read: {error.strerror}; name another folder") from error
