"""Bounds the memory that answers take from their generation until their client has them."""

from collections.abc import Callable

GiveWay = Callable[[str, bool], None]
"""Ends an answer, whose bytes do not count any more; called at most once. Its arguments are the reason in words, and
true when the answer is over its own bound, whatever the others are."""


class AnswerBudget:
    """Counts the bytes of all answers of a gateway. Synchronous, on one event loop.

    Over the bound, the answer that takes the most memory gives way. So a request with a small answer is not refused
    because of large ones, and the client that fills the memory is the one that notices.
    """

    def __init__(self, bound: int, bound_each: int) -> None:
        """`bound_each` is the bound of each single answer."""
        self.bound = bound
        self.bound_each = bound_each
        self._answers: dict[HeldAnswer, None] = {}
        self.held = 0
        """Bytes that count now: the sum of the sizes of its answers, which change it with their own."""

    @property
    def count(self) -> int:
        """Number of answers that count now."""
        return len(self._answers)

    def open(self, give_way: GiveWay) -> "HeldAnswer":
        """Count a further answer."""
        answer = HeldAnswer(self, give_way)
        self._answers[answer] = None
        return answer

    def make_room(self, grown: "HeldAnswer") -> None:
        """End the answer that has to give way, as this one has grown over a bound."""
        if grown.size > self.bound_each:
            grown.give_way(f"it takes over {self.bound_each} bytes (max_answer_bytes)", alone=True)
        else:
            largest = max(self._answers, key=lambda each: each.size)
            text = f"all answers together take over {self.bound} bytes (max_total_answer_bytes)"
            largest.give_way(f"{text}, and this one the most of them", alone=False)

    def close(self, answer: "HeldAnswer") -> None:
        """Count an answer no more."""
        self.held -= answer.size
        answer.size = 0
        self._answers.pop(answer, None)


class HeldAnswer:
    """The counted bytes of one answer."""

    __slots__ = ("_budget", "_closed", "_give_way", "size")

    def __init__(self, budget: AnswerBudget, give_way: GiveWay) -> None:
        self._budget = budget
        self._give_way = give_way
        self._closed = False
        self.size = 0
        """Bytes that it counts for."""

    def grow(self, count: int) -> None:
        """Count so many bytes more."""
        if self._closed:
            return
        budget = self._budget
        self.size += count
        budget.held += count
        if self.size > budget.bound_each or budget.held > budget.bound:
            budget.make_room(self)

    def shrink(self, count: int) -> None:
        """Count so many bytes fewer. Makes no room: less than before is over no bound."""
        if not self._closed:
            self.size -= count
            self._budget.held -= count

    def give_way(self, reason: str, *, alone: bool) -> None:
        """End the answer, as there is no room for it."""
        give_way = self._give_way
        self.release()
        give_way(reason, alone)

    def release(self) -> None:
        """Give back all its bytes; nothing counts any more. Repeatable."""
        self._closed = True
        self._give_way = _ended  # the answer and its request refer to each other until here
        self._budget.close(self)


def _ended(reason: str, alone: bool) -> None:
    """An answer that has ended gives way to none."""
