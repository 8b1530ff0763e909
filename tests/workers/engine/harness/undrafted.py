"""The part of a constraint that answers without drafts do not need."""


class Undrafted:
    """Base class of constraints for which nothing is drafted."""

    def fork(self) -> None:
        """Return no copy."""

    def forced(self) -> tuple[int, ...]:
        """Return no token."""
        return ()
