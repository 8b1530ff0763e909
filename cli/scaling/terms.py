"""The terms of `baton scale`, checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.transport.allow_list import check_name
from actors.transport.keys import KeyFileError
from cli.config.errors import CommandFailed
from cli.config.join_address import check_join_addresses
from cli.config.panels.field import ENGINE, MODEL
from cli.config.settings import Settings, flag, of_panels
from cli.scaling.placement import names_of
from cli.scaling.replica_target import ScaleRange

JOIN_TIMEOUT_S = 120.0
"""Time without a gateway after which a placed worker ends, unless `join_timeout_s` is set."""
MAX_RESOURCES = 32
RAYS_OWN = ("CPU", "GPU", "memory")
"""Resources that every cluster has, as Ray writes them."""
LEAST_AMOUNT = 0.0001
"""The least amount of a resource that Ray counts."""
LEAST_MEMORY = 1 << 20


@dataclass(frozen=True, slots=True)
class ScaleTerms:
    """The plan for the workers of one name."""

    prefix: str
    """The names of the workers are PREFIX-0, PREFIX-1 and so on."""
    bounds: ScaleRange
    resources: Mapping[str, float]
    """The needs of one worker, as Ray counts them."""
    options: Sequence[str]
    """The options of `baton worker` beside those of joining."""

    @classmethod
    def of(cls, settings: Settings) -> "ScaleTerms":
        """Check the settings. Raises `CommandFailed`, whose text names the one at fault."""
        if not settings.join:
            raise CommandFailed(f"{flag('join')} is needed: the address that the gateway was given as --listen-workers")
        if len(settings.join) > 1:
            raise CommandFailed(
                f"{flag('join')}: a worker that is placed joins one gateway, the one that makes its token, not "
                f"{len(settings.join)}"
            )
        check_join_addresses(settings.join)
        most = settings.max_replicas
        if most and most < settings.replicas:
            raise CommandFailed(f"{flag('max_replicas')}: {most} is less than --replicas, {settings.replicas}")
        if most and not settings.replicas:
            raise CommandFailed(
                f"{flag('replicas')}: with {flag('max_replicas')} it must be at least 1, since a server without a "
                "worker refuses requests for its model, and no queue forms"
            )
        bounds = ScaleRange(settings.replicas, most or settings.replicas, settings.target_queue, settings.scale_down_s)
        return cls(scale_name(settings), bounds, parse_resources(settings.resources), _options(settings))

    def arguments(self, settings: Settings, server_key: str) -> list[str]:
        """The command line of one worker."""
        timeout_s = settings.join_timeout_s or JOIN_TIMEOUT_S
        joining = ["--join", settings.join[0], "--server-key", server_key, "--join-timeout-s", f"{timeout_s:g}"]
        return ["worker", *self.options, *joining]


def ray_address(settings: Settings) -> str:
    """The address of the cluster. Raises `CommandFailed`."""
    if not settings.ray:
        raise CommandFailed(f"{flag('ray')} is needed: the address of the Ray cluster, or auto on one of its nodes")
    return settings.ray


def scale_name(settings: Settings) -> str:
    """The beginning of the workers' names. Raises `CommandFailed`."""
    try:
        check_name(names_of(settings.scale_name, settings.max_replicas or settings.replicas or 1)[-1])
    except KeyFileError as error:
        raise CommandFailed(f"{flag('scale_name')}: {error}") from error
    return settings.scale_name


def parse_resources(text: str) -> dict[str, float]:
    """Parse the value of `resources`. Raises `CommandFailed`."""
    where = flag("resources")
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise CommandFailed(f'{where}: must be a JSON object such as {{"CPU": 8}}: {error}') from error
    if not isinstance(found, dict) or not 1 <= len(found) <= MAX_RESOURCES:
        raise CommandFailed(f'{where}: must be a JSON object of 1 to {MAX_RESOURCES} resources, such as {{"CPU": 8}}')
    for name, amount in found.items():
        known = next((each for each in RAYS_OWN if each.lower() == name.lower()), name)
        if known != name:
            raise CommandFailed(f"{where}: write {known}, not {name}")
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not number or not 0 < amount < 2**53:
            raise CommandFailed(f"{where}: {name} must be a number above 0, not {json.dumps(amount)[:64]}")
        if amount < LEAST_AMOUNT:
            raise CommandFailed(f"{where}: {name} must be at least {LEAST_AMOUNT:g}, as Ray wants it, not {amount:g}")
        if name == "memory" and amount < LEAST_MEMORY:
            raise CommandFailed(f"{where}: memory is in bytes, and {amount:g} is less than any worker needs")
        if amount > 1 and amount != int(amount):
            raise CommandFailed(f"{where}: {name} must be a whole number above 1, as Ray wants it, not {amount:g}")
    return found


def _options(settings: Settings) -> list[str]:
    """The settings of the model and the engine that were given, as options of `baton worker`."""
    options: list[str] = []
    for name in (*of_panels(MODEL, ENGINE), "role", "hang_timeout_s"):
        if name not in settings.sources:
            continue
        value = getattr(settings, name)
        if name == "model":
            options.insert(0, str(value))
        elif isinstance(value, bool):
            options.append(flag(name) if value else f"--no-{flag(name)[2:]}")
        else:
            options += [flag(name), str(value)]
    return options
