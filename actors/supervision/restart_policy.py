"""The restart policy of a worker: its back-off, and when it is given up. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from actors.process.exit_cause import Origin
from actors.supervision.messages import Loss

MAX_REMEMBERED = 64
"""The newest failures of one worker are remembered."""
MAX_FAILED_STARTS = 5
"""Failed starts in a row after which a worker is given up, also when each takes longer than the policy's window."""
MAX_KILLED_DELAY_S = 5.0
"""The longest delay after starts that were killed from outside: the killer may be gone, and the worker is wanted."""

NOT_ITS_OWN = frozenset({Origin.OUTSIDE, Origin.MEMORY, Origin.UNKNOWN})
"""Origins of the end of a start that the worker did not cause. It ran no request: what ended it with a SIGKILL is the
kernel, for memory, or another process, whether the system reports which one or not."""


class Restart(Struct, frozen=True):
    """Start again after `delay_s` seconds."""

    delay_s: float


class GiveUp(Struct, frozen=True):
    """Do not start again."""

    reason: str


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Restart with a delay that doubles with each failure within `window_s`, up to `max_delay_s`; give up at
    `max_failures` of them, or never if it is None. With the defaults, the last delay before that is 2 s."""

    max_failures: int | None = 5
    window_s: float = 300.0
    first_delay_s: float = 0.25
    max_delay_s: float = 30.0

    def __post_init__(self) -> None:
        """Raises `ValueError` that names the field which is out of its range."""
        if self.max_failures is not None and not 1 <= self.max_failures <= MAX_REMEMBERED:
            raise ValueError(f"max_failures: {self.max_failures} is not between 1 and {MAX_REMEMBERED}")
        if not self.window_s > 0:
            raise ValueError(f"window_s: {self.window_s} is not above 0")
        if not 0 <= self.first_delay_s <= self.max_delay_s:
            raise ValueError(f"first_delay_s: {self.first_delay_s} is not between 0 and max_delay_s")

    def decide(self, failures: Sequence[float], now: float) -> Restart | GiveUp:
        """Decide after a failure. `failures` are the times of those that count, on the steady clock of `now`. The
        failure just recorded may be exempt, and not among them."""
        recent = self._recent(failures, now)
        if self.max_failures is not None and recent >= self.max_failures:
            return GiveUp(f"failed {recent} times within {self.window_s:g} s")
        return Restart(self.delay_s(failures, now))

    def delay_s(self, failures: Sequence[float], now: float) -> float:
        """The back-off in seconds, however many failures there are."""
        recent = self._recent(failures, now)
        return min(self.first_delay_s * 2.0 ** min(recent - 1, 64), self.max_delay_s) if recent else 0.0

    def _recent(self, failures: Sequence[float], now: float) -> int:
        return sum(1 for failed in failures if now - failed < self.window_s)


class FailureRecord:
    """The failures of one worker, by incarnation.

    What is done from outside never gives up a worker that has ever been ready: the end of a ready incarnation does not
    count at all, and a start that is killed, also one for memory, only delays the next one. Of a worker that has never
    been ready, killed starts count as failed: it may be too large for its machine. Others may be exempted, before or
    after they are recorded.
    """

    def __init__(self, policy: RestartPolicy, shortage_s: float, *, joins: bool = False) -> None:
        """A worker that `joins` is started by another machine, and never given up for failed starts. While the system
        lacks a resource (disk, memory, descriptors), a worker that has been ready is started every `shortage_s`
        seconds."""
        self._policy = policy
        self._shortage_s = shortage_s
        self._joins = joins
        self._failures: deque[tuple[int, float]] = deque(maxlen=MAX_REMEMBERED)
        self._exempt: deque[int] = deque(maxlen=MAX_REMEMBERED)
        self._failed_starts = 0
        self._killed_starts = 0
        self._last_ready = 0  # the number of the last incarnation that was
        self._changed = 0  # the number of the last one of another program

    def forget(self) -> None:
        """Forget all failures."""
        self._failures.clear()
        self._failed_starts = self._killed_starts = 0

    def changed(self, number: int) -> None:
        """Note that the incarnations after this one run something else, which has never been ready."""
        self._changed = number

    def ready(self, number: int) -> None:
        """Note that an incarnation became ready."""
        self._last_ready = number

    def exempt(self, number: int) -> None:
        """Do not count the failure of that incarnation."""
        if number not in self._exempt:
            self._exempt.append(number)

    def failed(self, loss: Loss, number: int, now: float) -> Restart | GiveUp:
        """Record how an incarnation ended, and decide what follows."""
        was_ready = self._last_ready == number
        if loss.shortage and self._has_served:
            return Restart(self._shortage_s)
        if was_ready:
            self._failed_starts = self._killed_starts = 0
            if loss.origin is Origin.OUTSIDE:
                return Restart(self._policy.delay_s(self._counted(), now))
        elif loss.origin in NOT_ITS_OWN:
            self._killed_starts += 1
            if self._has_served:
                return Restart(self._delay_after_kills(loss.origin))
        self._failed_starts += not was_ready
        self._failures.append((number, now))
        if loss.lasting and not self._joins:
            return GiveUp("cannot be healed by a restart")
        if self._failed_starts >= MAX_FAILED_STARTS and not self._joins:
            return GiveUp(self._hopeless())
        return self._policy.decide(self._counted(), now)

    @property
    def _has_served(self) -> bool:
        return self._last_ready > self._changed

    def _counted(self) -> list[float]:
        """The times of the failures that count."""
        return [at for number, at in self._failures if number not in self._exempt]

    def _delay_after_kills(self, origin: Origin) -> float:
        """The back-off after starts in a row that were killed. A machine without memory gets more time than a killer:
        each start may make the kernel kill something else."""
        policy = self._policy
        most_s = policy.max_delay_s if origin is Origin.MEMORY else min(policy.max_delay_s, MAX_KILLED_DELAY_S)
        return min(policy.first_delay_s * 2.0 ** min(self._killed_starts - 1, 64), most_s)

    def _hopeless(self) -> str:
        """Why a worker whose starts keep failing is given up."""
        if self._killed_starts < self._failed_starts:
            return f"failed {self._failed_starts} starts in a row"
        return (
            f"killed in {self._killed_starts} starts in a row, and never ready: "
            "see whether a memory limit or a watchdog ends it"
        )
