"""Probes the devices of one backend: run with the argument `iree`, the module prints the probes as JSON.

A process of its own, because a broken driver may abort it.
"""

import importlib
import sys

import msgspec

from actors.process.logs import configure_logging
from workers.host.probe import Probe
from workers.process.backends import PACKAGES, plugged


def main(backend: str) -> None:
    """Print the probes of one backend as a JSON list."""
    configure_logging("probe", "error")  # to standard error
    if backend in PACKAGES:
        probes = importlib.import_module(f"workers.{backend}.probe").probe()
    else:
        probes = msgspec.convert(plugged(backend).probe(), list[Probe])
    sys.stdout.buffer.write(msgspec.json.encode(probes))


if __name__ == "__main__":
    main(sys.argv[1])
