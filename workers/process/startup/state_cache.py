"""The host memory of a worker for the states of prefixes, recurrent or of windows."""

import structlog

from workers.engine.runner import RunnerCapabilities
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.process.spec import WorkerSpec
from workers.process.startup.state_sizes import check_bytes

STATE_CACHE_SHARE = 1 / 16
"""Most of the free memory that states of all workers take, unless a size is set: as much as the prefix
tier."""


def state_cache_bytes(spec: WorkerSpec, capabilities: RunnerCapabilities, free: int) -> int:
    """Return the bytes for states that are kept for prefixes: those of the setting, but if it is left open at
    most this worker's part of `STATE_CACHE_SHARE` of the `free` memory; 0 for a model without such states.

    Raises `LoadRefused` for a size that was set and is too small for one state.
    """
    if not (capabilities.state_bytes and spec.prefix_cache and spec.state_cache_bytes):
        return 0
    asked = "state_cache_bytes" in spec.sources
    size = (
        spec.state_cache_bytes if asked else min(spec.state_cache_bytes, int(STATE_CACHE_SHARE * free) // spec.workers)
    )
    least = capabilities.state_bytes + OVERHEAD_BYTES
    log = structlog.get_logger()
    if size >= least:
        log.info("state_cache", bytes=size, states=size // least)
        return size
    if asked:
        check_bytes(spec, capabilities.state_bytes)
    reason = f"state_cache_bytes: a state of {spec.model_name} takes {least}, more than {size}"
    log.info("state_cache_off", reason=reason)
    return 0
