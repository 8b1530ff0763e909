"""Runs commands with a hub on loopback and a cache of their own."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from huggingface_hub import constants

from tests.cli.command_line import baton
from tests.workers.hub.hub_server import HubServer

ROOT = Path(__file__).parents[4]


@contextmanager
def hub_variables(variables: dict[str, str]) -> Iterator[None]:
    """Let `huggingface_hub`, which reads these variables when it is imported, have them in this process."""
    assert constants.__spec__ is not None
    assert constants.__spec__.loader is not None
    with mock.patch.dict(os.environ, variables):
        fresh = importlib.util.module_from_spec(constants.__spec__)
        constants.__spec__.loader.exec_module(fresh)
        values = {name: value for name, value in vars(fresh).items() if name.isupper()}
        with mock.patch.multiple(constants, **values):
            yield


@dataclass(frozen=True)
class Commands:
    """`baton` as a user of one hub has it."""

    hub: HubServer
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "HF_TOKEN": "", "COLUMNS": "1000"}

    def run(self, *words: str, given: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command as a process to its end, with `given` as its standard input."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "cli", *words],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | self.environment | variables,
            input=given,
            capture_output=True,
            text=True,
            timeout=100,
        )

    def invoke(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end in this process."""
        environment = self.environment | variables
        with hub_variables(environment):
            return baton(*words, **environment)

    def snapshots(self) -> Iterator[Path]:
        """The folders of the models in the cache."""
        yield from (self.home / "hub").glob("models--*/snapshots/*")
