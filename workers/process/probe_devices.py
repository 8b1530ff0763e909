"""Probes the devices of one backend: run with the argument `iree`, the module prints the probes as JSON.

A process of its own, because a broken driver may abort it.
"""

import importlib
import sys

import msgspec


def main(backend: str) -> None:
    """Print the probes of one backend as a JSON list."""
    module = importlib.import_module(f"workers.{backend}.probe")
    sys.stdout.buffer.write(msgspec.json.encode(module.probe()))


if __name__ == "__main__":
    main(sys.argv[1])
