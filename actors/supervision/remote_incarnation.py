"""One incarnation that came over the network: the same actor without the process."""

from typing import TYPE_CHECKING

import anyio

from actors.join.request import Arrival
from actors.process.exit_cause import Origin
from actors.supervision.incarnation_actor import IncarnationActor, WorkerFailed
from actors.supervision.worker import WorkerState
from protocol.codec import encode
from protocol.events import SILENT_S

if TYPE_CHECKING:
    from actors.supervision.remote_worker import RemoteWorker


class RemoteIncarnation(IncarnationActor):
    """From its welcome to the loss of its link. It cannot be killed, only left: its own supervisor, on its machine,
    ends what hangs."""

    def __init__(self, worker: "RemoteWorker", arrival: Arrival) -> None:
        super().__init__(worker, joins=True)
        self._arrival = arrival
        self._link = arrival.link

    @property
    def pid(self) -> int | None:
        return None if self._link is None else self._arrival.hello.pid

    @property
    def address(self) -> str:
        return self._arrival.address

    async def started(self) -> None:
        arrival = self._arrival
        self._log.info("worker_joined", address=arrival.address, says=arrival.hello.worker)
        arrival.link.hand_over(self._heard, self.link_lost)
        self.context.start_soon(self._watch_link)
        self.context.start_soon(self._watch_deadlines, arrival.link)
        self.context.start_soon(self._watch_faults)
        self._heard([encode(arrival.hello)])

    async def stopped(self, failure: Exception | None) -> None:
        """Close the link: that is all that can be done from here."""
        if failure is not None:
            self._lose(WorkerState.BACKOFF, failure)
        if self._link is not None:
            self._link.drain_now()
        self._lose(WorkerState.STOPPED, None)

    def hang_origin(self) -> Origin:
        """Its machine beats for it, hung or not: where nothing is heard at all, that or the network is gone."""
        limits = self._limits
        silence = min(SILENT_S, limits.beat, limits.idle, self.seen.hang_s / 2)
        return Origin.OUTSIDE if self.seen.silent_s(anyio.current_time()) >= silence else Origin.WITHIN

    def disconnect(self, why: str | None = None) -> None:
        """End now: because its link is as good as lost, if there is a reason; otherwise because it was asked for."""
        if why is not None:
            self._fail(WorkerFailed(why, Origin.OUTSIDE))
            return
        self.seen.leave(anyio.current_time())
        self.context.stop()

    async def _watch_link(self) -> None:
        await self._link_lost.wait()
        if self.seen.leave_by is None:
            raise WorkerFailed(f"its link was lost: {self._loss}", Origin.OUTSIDE)
        self.context.stop()
