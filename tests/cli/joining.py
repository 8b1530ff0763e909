"""The commands of a server and of a worker that joins it from another machine, here on one."""

from pathlib import Path

from actors.transport.allow_list import AllowList
from actors.transport.keys import make_gateway_key, make_key
from tests.cli.commands.test_serve import SERVE
from tests.ports import port_for_later


def joining_commands(folder: Path, *words: str) -> tuple[list[str], list[str]]:
    """Return the arguments of Python for a server without workers, and for a scripted worker `far` that joins it, with
    further words on its command line. Their keys are made in a folder."""
    server = make_gateway_key(folder / "keys").public_text
    AllowList(folder / "keys").add("far", make_key(folder / "far.key").public_text)
    address = f"tcp://127.0.0.1:{port_for_later()}"
    serve = [*SERVE, "--workers", "0", "--listen-workers", address, "--keys-dir", str(folder / "keys")]
    join = ["--join", address, "--server-key", server, "--key-file", str(folder / "far.key")]
    return serve, ["-m", "cli", "worker", "--backend", "scripted", *words, *join]
