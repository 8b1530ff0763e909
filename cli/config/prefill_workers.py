"""The server's own workers that compute long prompts for the others."""

from cli.config.errors import CommandFailed
from cli.config.settings import Settings, flag
from protocol.events import Phases


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
