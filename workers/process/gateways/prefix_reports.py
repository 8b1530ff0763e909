"""The prefixes that a worker holds, as far as each of its gateways has still to learn of them. Pure."""

from collections.abc import Iterable, Sequence

from protocol.events import HeldPrefix


class PrefixReports:
    """Keeps the last report of each holder, of which a worker has as many as slots. A gateway gets all of them when it
    joins, and then those that have changed.

    Digests are keyed by the tenant. So they mean something to gateways whose tenants are those of the worker, and the
    others, whose tenants have `prefixes` there, get none.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._held: dict[int, HeldPrefix] = {}
        self._unreported: list[dict[int, HeldPrefix]] = [{} for _ in prefixes]
        """By holders, for each gateway."""
        self._reports = not any(prefixes)

    def note(self, changes: Iterable[HeldPrefix]) -> None:
        """Note what the worker reports."""
        if not self._reports:
            return
        for each in changes:
            if each.tokens:
                self._held[each.holder] = each
            else:
                self._held.pop(each.holder, None)
            for unreported in self._unreported:
                unreported[each.holder] = each

    def joined(self, gateway: int) -> None:
        """Note that a gateway has joined, which knows nothing yet."""
        self._unreported[gateway] = dict(self._held)

    def take(self, gateway: int) -> tuple[HeldPrefix, ...]:
        """Return what a gateway does not know yet, which the next frame to it has."""
        if not self._unreported[gateway]:
            return ()
        taken, self._unreported[gateway] = self._unreported[gateway], {}
        return tuple(taken.values())

    def clear(self) -> None:
        """Forget all, as the worker is gone."""
        self._held.clear()
        for unreported in self._unreported:
            unreported.clear()
