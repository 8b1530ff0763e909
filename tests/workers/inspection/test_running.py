"""The workers that run on this machine are found by their command lines."""

import subprocess
import sys

import msgspec

from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings
from models import builtin_path
from workers.inspection.running import running_workers

SLEEP = "import sys; sys.stdin.read()"


def test_a_worker_is_found_by_its_spec() -> None:
    """The process has a worker's arguments; what it runs does not matter."""
    spec = worker_spec(Settings(), ChosenModel("found", builtin_path()))
    encoded = msgspec.json.encode(spec).decode()
    commands = [
        [sys.executable, "-c", SLEEP, "workers", "--endpoint", "x", "--spec", encoded],
        [sys.executable, "-c", SLEEP, "workers", "--spec", "not JSON"],
        [sys.executable, "-c", SLEEP, "workers", "--spec"],
        [sys.executable, "-c", SLEEP, "--spec", encoded],
    ]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    try:
        found = running_workers()
        assert found[processes[0].pid] == spec
        assert not found.keys() & {process.pid for process in processes[1:]}
    finally:
        for process in processes:
            process.communicate()
