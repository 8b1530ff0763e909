"""Which workers of a model take requests now, and which stand by. Owned by the router; everything is synchronous."""

from collections.abc import Callable, Hashable, Iterator

import structlog

from actors.supervision.worker import WorkerState, WorkerStatus, WorkerUnavailable
from gateway.routing.circuit_breaker import Circuit
from gateway.routing.worker_handle import Role, Seat
from protocol.commands import Stop
from protocol.errors import ErrorCode
from protocol.events import Event, Failed, Finished

_log = structlog.get_logger("gateway.routing.worker_pool")


class Roster:
    """The seats by their worker's name, and their roles.

    A model has as many active seats as it was given, always; which seats they are follows from one rule: an active
    worker that cannot serve and a standby that can change places. So a restarted worker becomes the next standby.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seats: dict[str, Seat] = {}

    def __getitem__(self, worker: str) -> Seat:
        return self._seats[worker]

    def find(self, worker: str) -> Seat | None:
        """None for one that is not there, or no longer."""
        return self._seats.get(worker)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def add(self, seat: Seat) -> None:
        """Raises `ValueError` for a second worker of one name."""
        if seat.name in self._seats:
            raise ValueError(f"there is a worker {seat.name!r} already")
        self._seats[seat.name] = seat

    def remove(self, worker: str) -> None:
        """Forget a worker, which has ended and stood by."""
        del self._seats[worker]

    def models(self) -> list[str]:
        """Names of the models, in the order in which they were added."""
        return list(dict.fromkeys(seat.model for seat in self))

    def of(self, model: str) -> list[Seat]:
        """All seats of a model, whatever their role and state."""
        return [seat for seat in self if seat.model == model]

    def candidates(self, model: str) -> list[Seat]:
        """Who may be given a request of this model now. First those with a free slot that try no suspect, then others
        with a free slot, then the rest; the least loaded of each first, and those that may be lost soon last of all."""
        self.promote(model)
        now = self._clock()
        seats = [seat for seat in self.of(model) if seat.admits(now)]
        return sorted(seats, key=lambda seat: (seat.doubtful(now), *_preference(seat), len(seat.live)))

    def promote(self, model: str) -> None:
        """Let active workers change places with standbys that are of more use, those first that are of none. One that
        may be lost soon is still of more use than one that cannot serve at all."""
        now = self._clock()
        use = {seat: seat.usefulness(now) for seat in self.of(model)}
        standbys = sorted((seat for seat in use if seat.role is Role.STANDBY), key=use.__getitem__, reverse=True)
        for seat in sorted((seat for seat in use if seat.role is Role.ACTIVE), key=use.__getitem__):
            if standbys and use[standbys[0]] > use[seat]:
                self.swap(seat, standbys.pop(0))

    def swap(self, active: Seat, standby: Seat) -> None:
        """The standby takes the requests from now on. What lives on the other one is not touched."""
        active.role, standby.role = Role.STANDBY, Role.ACTIVE
        standby.promotions += 1
        _log.info("standby_promoted", worker=standby.name, instead_of=active.name, model=active.model)

    def heard(self, seat: Seat, event: Event) -> None:
        """Note a sequence's end, for the worker's circuit. Failures that were attributed to the sequence do not
        count."""
        if isinstance(event, Finished):
            if event.reason != "cancelled":  # which says nothing of how it would have ended
                seat.breaker.succeeded()
        elif isinstance(event, Failed) and event.code is ErrorCode.STEP:
            if seat.failed_step not in seat.exemptions:
                self._failed(seat, seat.failed_step, event.text)
        # An internal error is a bug that one request has triggered, and its neighbours have not.
        elif isinstance(event, Failed) and event.code is ErrorCode.INTERNAL and not seat.exemptions.add(event.stream):
            self._failed(seat, event.stream, event.text)

    def _failed(self, seat: Seat, cause: Hashable, reason: str) -> None:
        now = self._clock()
        before = seat.breaker.state(now)
        seat.breaker.failed(now, cause)
        if before is not Circuit.OPEN and seat.breaker.state(now) is Circuit.OPEN:
            _log.warning("circuit_opened", worker=seat.name, model=seat.model, reason=reason)
            self.promote(seat.model)
            if seat.role is Role.STANDBY:
                self._renew(seat)

    def _renew(self, seat: Seat) -> None:
        """One that fails its requests is no standby: it is to leave, and its supervisor starts it again."""
        try:
            seat.worker.send_nowait([Stop()])
        except WorkerUnavailable as error:
            _log.info("stop_not_sent", worker=seat.name, reason=str(error))  # it is about to be lost anyway

    def hopeless(self, model: str) -> str | None:
        """Why no worker of this model will come back by itself, in words; None while one may."""
        seats = self.of(model)
        if not all(_is_out(seat.status) for seat in seats):
            return None
        return "; ".join(f"worker {seat.name} is {_state(seat)}: {seat.status.reason}" for seat in seats)

    def excuse(self, model: str) -> str:
        """What to tell a client when `candidates` has none."""
        if self.hopeless(model) is not None:
            return f"the workers of model {model!r} are out of service"
        if any(seat.ready for seat in self.of(model)):
            return f"the requests of model {model!r} keep failing; its workers get a pause"
        return f"no worker of model {model!r} is ready"


def _preference(seat: Seat) -> tuple[bool, bool]:
    """The smaller, the better. Behind others in its queue nobody runs while a suspect is new."""
    full = len(seat.live) >= seat.slots
    return full, not full and seat.tries_suspect


def _is_out(status: WorkerStatus) -> bool:
    """It was given up, or stopped; not one that has not been started yet."""
    return status.state is WorkerState.GIVEN_UP or (status.state is WorkerState.STOPPED and status.incarnation > 0)


def _state(seat: Seat) -> str:
    return seat.status.state.value.replace("_", " ")
