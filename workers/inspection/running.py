"""The workers that run on this machine, by their command lines."""

import msgspec
import psutil

from workers.process.spec import WorkerSpec


def running_workers() -> dict[int, WorkerSpec]:
    """Return the spec of each worker process of this user, whichever server or agent started it, by its pid."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words: list[str] = process.info["cmdline"] or []  # None for processes of other users
        if "workers" not in words or "--spec" not in words[:-1]:
            continue
        try:
            found[process.pid] = msgspec.json.decode(words[words.index("--spec") + 1], type=WorkerSpec)
        except msgspec.DecodeError:  # another program, or a worker of another version of Baton
            continue
    return found
