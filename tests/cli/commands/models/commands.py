"""Runs commands as processes, with a hub on loopback and a cache of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.workers.hub.hub_server import HubServer

ROOT = Path(__file__).parents[4]


@dataclass(frozen=True)
class Commands:
    """`baton` as a user of one hub has it."""

    hub: HubServer
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "HF_TOKEN": "", "COLUMNS": "1000"}

    def run(self, *words: str, given: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, with `given` as its standard input."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "cli", *words],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | self.environment | variables,
            input=given,
            capture_output=True,
            text=True,
            timeout=100,
        )

    def snapshots(self) -> Iterator[Path]:
        """The folders of the models in the cache."""
        yield from (self.home / "hub").glob("models--*/snapshots/*")
