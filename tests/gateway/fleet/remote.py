"""A gateway that remote workers may join, and workers of their own supervisors that do so over TCP, each in real
processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec

from actors.supervision.deadlines import Deadlines
from actors.supervision.worker import WorkerState, WorkerStatus
from actors.transport.allow_list import AllowList
from actors.transport.keys import KeyPair, make_gateway_key, make_key
from gateway.fleet.launch import WorkerLaunch
from gateway.fleet.remote_join import RemoteJoin
from gateway.models.terms import ModelTerms
from gateway.settings import GatewaySettings
from tests.gateway.harness.real import Real, real_gateway
from workers.process.spec import ScriptedSpec, WorkerSpec

SCRIPT = Path(__file__).with_name("joining_worker.py")


@dataclass
class Doorway:
    """A running gateway that workers may join."""

    real: Real
    joins: RemoteJoin
    folder: Path
    key: KeyPair

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.joins.port}"

    def file(self, name: str) -> Path:
        """The secret key of a worker."""
        return self.folder.parent / f"{name}.key"

    def rejected(self) -> dict[str, int]:
        """Return the rejections, without zeros."""
        return {why: count for why, count in self.real.router.rejections.total.items() if count}

    def status(self, name: str) -> WorkerStatus:
        return self.real.fleet.members[name].status

    async def ready(self, name: str, incarnation: int = 1) -> WorkerStatus:
        """Until that incarnation, or a later one, takes requests."""

        def there() -> bool:
            if name not in self.real.fleet.members:
                return False
            status = self.status(name)
            return status.state is WorkerState.READY and status.incarnation >= incarnation

        await self.real.until(there)
        return self.status(name)

    @contextmanager
    def joining(self, name: str, **fields: Any) -> Iterator[subprocess.Popen[bytes]]:
        """See `joining`."""
        with joining(self.file(name), (self.address, self.key), **fields) as process:
            yield process


@contextmanager
def joining(file: Path, *gateways: tuple[str, KeyPair], **fields: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A worker's supervisor on "another machine", with its worker, for gateways at these addresses; both are gone at
    the end."""
    script = {key: fields.pop(key) for key in list(fields) if key in ScriptedSpec.__struct_fields__}
    spec = WorkerSpec(
        name="there",
        log_level="warning",
        scripted=ScriptedSpec(**script),
        **{"backend": "scripted", "model_name": "tiny", "model_path": "", "max_batch_size": 4, **fields},
    )
    text = json.dumps(msgspec.to_builtins(spec))
    places = [word for address, key in gateways for word in (address, key.public_text)]
    arguments = [text, str(file), *places]
    process = subprocess.Popen([sys.executable, "-P", str(SCRIPT), *arguments], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@asynccontextmanager
async def doorway(
    folder: Path,
    *launches: WorkerLaunch,
    names: tuple[str, ...] = ("far",),
    deadlines: Deadlines | None = None,
    host: str = "127.0.0.1",
    listen: Callable[[Callable[[], None]], None] = lambda take_port: take_port(),
    models: Sequence[ModelTerms] = (),
) -> AsyncIterator[Doorway]:
    """A gateway whose allow-list has these names; their secret keys lie beside its folder. `listen` calls what takes
    the port, in the network where `host` is."""
    keys = folder / "gateway"
    key = make_gateway_key(keys)
    for name in names:
        AllowList(keys).add(name, make_key(folder / f"{name}.key").public_text)
    async with real_gateway(
        *launches, deadlines=deadlines, models=models, on_removed=lambda worker: joins.forget(worker)
    ) as real:
        settings = GatewaySettings(listen_workers=f"tcp://{host}:0", keys_dir=str(keys))
        joins = RemoteJoin(settings, real.router.rejections)
        listen(joins.listen)
        async with anyio.create_task_group() as group:
            group.start_soon(joins.run, real.fleet.context.ref)
            yield Doorway(real, joins, keys, key)
            group.cancel_scope.cancel()


async def until_gone(pid: int, until: Callable[[Callable[[], bool]], Any]) -> None:
    """Until a process that is not ours has ended."""

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await until(gone)
