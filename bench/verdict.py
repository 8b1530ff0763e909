"""How one visit of a soak is judged, and how all of them are counted. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from cli.chaos.asking import Request
from cli.chaos.heard import Heard

ALLOWED = frozenset({"quarantined", "step_failed"})
"""What a request may end with that was there at two deaths, or in two failed steps."""
SHOWN = 20
"""Violations that are told in full."""


@dataclass(frozen=True)
class Verdict:
    """`outcome` is answered, left, refused or an error's code; `problem` is what the server owed and did not do."""

    outcome: str
    problem: str = ""


def judge(request: Request, heard: Heard, stayed: bool, whole: Heard | None) -> Verdict:
    """What a client heard, which `stayed` to the end or left before. `whole` is the undisturbed answer, None for a
    request whose answer is left to chance."""
    if whole is not None and not heard.begins(whole):
        return Verdict("altered", _difference(heard, whole))
    if not stayed:
        return Verdict("left")
    if breach := heard.breach(request.choices):
        return Verdict("no end", breach)
    if heard.errors:
        code, text = heard.errors[0]
        return Verdict(code, "" if code in ALLOWED else f"{heard.status} {code}: {text}")
    if whole is not None and not heard.same(whole):
        return Verdict("altered", _difference(heard, whole))
    return Verdict("answered")


def _difference(heard: Heard, whole: Heard) -> str:
    """The first choice that differs, from where it does."""
    for index, choice in heard.choices.items():
        wanted = whole.choices.get(index)
        if wanted is None:
            return f"choice {index} was not asked for"
        if choice.ids != wanted.ids[: len(choice.ids)]:
            pairs = zip(choice.ids, wanted.ids, strict=False)
            at = next((at for at, (one, other) in enumerate(pairs) if one != other), len(wanted.ids))
            there, right = choice.ids[at : at + 8], wanted.ids[at : at + 8]
            return f"choice {index}, token {at} of {len(wanted.ids)}: {there}, not {right}"
        if choice != wanted:
            return f"choice {index}: {choice!r:.300}, not {wanted!r:.300}"
    return f"usage {heard.usages}, not {whole.usages}"


@dataclass
class Tally:
    """All visits."""

    outcomes: Counter[str] = field(default_factory=Counter)
    violations: int = 0
    told: list[str] = field(default_factory=list)

    def count(self, name: str, verdict: Verdict) -> None:
        """One visit more; `name` says which, for whoever looks for it."""
        self.outcomes[verdict.outcome] += 1
        if verdict.problem:
            self.violations += 1
            if len(self.told) < SHOWN:
                self.told.append(f"{name}: {verdict.outcome}: {verdict.problem}")
