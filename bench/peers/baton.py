"""Baton's engine in a process of its own, driven like its peers."""

import sys
from dataclasses import dataclass
from pathlib import Path

from bench.peers.child import CHILDREN, ChildSession
from bench.peers.peer import RivalModel, Session
from bench.peers.precisions import PRECISIONS


@dataclass(frozen=True, slots=True)
class BatonPeer:
    """The engine of this checkout."""

    name: str = "Baton"
    about: str = "the engine of this checkout"

    def refusal(self, precision: str, cpu: str) -> str:
        return ""

    def install(self, cpu: str, jobs: int) -> None:
        """Nothing is to be done."""

    def prepare(self, model: RivalModel) -> None:
        """Nothing is to be done: weights are quantized while they load."""

    def start(self, model: RivalModel, caches: Path | None = None) -> Session:
        """With `caches`, graphs are compiled in the background while requests run, as in a server that has just
        started. Without, all graphs are ready."""
        precision = PRECISIONS[model.precision]
        setup = {
            "path": str(model.path),
            "cache": str(caches or model.folder / "graphs"),
            "slots": model.slots,
            "context": model.context,
            "dtype": precision.dtype,
            "quantize": precision.quantize,
            "cpu": model.cpu,
        }
        settings = {"setup": setup, "settle": caches is None}
        return ChildSession(sys.executable, CHILDREN / "baton.py", settings, {})
