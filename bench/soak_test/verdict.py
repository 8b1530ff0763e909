"""Verdicts on the visits of a soak, and their counts. Pure."""

import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from bench.soak_test.server_log import Failures
from cli.chaos.http_client import ClientRequest
from cli.chaos.rounds import percentile
from cli.chaos.transcript import Transcript
from gateway.routing.failure_attribution import MAX_TRIES

STEPS = frozenset({"step_failed", "not_finite"})
"""The codes of a request whose step failed again after a retry."""
REFUSALS = frozenset({"quarantined", *STEPS})
"""The codes that worker failures may explain: see `explained`."""
MOST_REFUSED = 0.01
"""Share of the visits. Failure attribution cannot always tell a poison request from one that ran beside it."""
FEW = 3
"""Refusals that are allowed, however few visits there were."""
SHOWN = 20
"""Violations that are shown in full."""


@dataclass(frozen=True)
class Verdict:
    """`outcome` is answered, left, altered, duplicated, lost, hung or an error's code; `problem` is the violation, or
    empty."""

    outcome: str
    problem: str = ""


def judge(request: ClientRequest, transcript: Transcript, stayed: bool, whole: Transcript | None) -> Verdict:
    """Judge what a client received, which `stayed` to the end or left before. `whole` is the undisturbed answer; None
    if the request is sampled without a seed."""
    if whole is not None and not transcript.is_prefix_of(whole):
        return Verdict(_how(transcript, whole), _difference(transcript, whole))
    if not stayed:
        return Verdict("left")
    if violation := transcript.violation(request.choices):
        return Verdict("duplicated" if transcript.ends > 1 or transcript.late else "lost", violation)
    if transcript.errors:
        code, text = transcript.errors[0]
        return Verdict(code, "" if code in REFUSALS else f"{transcript.status} {code}: {text}")
    if whole is not None and not transcript.same(whole):
        return Verdict(_how(transcript, whole), _difference(transcript, whole))
    return Verdict("answered")


def _how(transcript: Transcript, whole: Transcript) -> str:
    return "duplicated" if transcript.tokens > whole.tokens else "altered"


def _difference(transcript: Transcript, whole: Transcript) -> str:
    """The first difference between two answers, as text."""
    for index, choice in transcript.choices.items():
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
    return f"usage {transcript.usages}, not {whole.usages}"


def explained(code: str, sequences: Sequence[Failures]) -> bool:
    """Return True if one of these sequences lived through two failures from within, or `MAX_TRIES` of any kind: only
    then may a request be refused. The log does not count the failed step that ends a request."""
    last = int(code in STEPS)
    return any(each.within + last >= 2 or each.total + last >= MAX_TRIES for each in sequences)


def fingerprint(request: ClientRequest) -> str:
    """The part of a request by which the gateway identifies a poison request. Requests with the same fingerprint are
    refused together."""
    own = {"model", "seed", "n", "max_tokens", "stop", "stream", "stream_options", "ignore_eos", "return_token_ids"}
    return json.dumps({name: value for name, value in request.body.items() if name not in own}, sort_keys=True)


@dataclass(frozen=True)
class _Refusal:
    """A visit that ended with one of `REFUSALS`."""

    name: str
    request: str
    fingerprint: str
    code: str


@dataclass
class VisitTally:
    """All visits."""

    outcomes: Counter[str] = field(default_factory=Counter)
    violations: int = 0
    shown: list[str] = field(default_factory=list)
    gaps: list[tuple[str, float]] = field(default_factory=list)
    """The server's id of each answered stream, and the longest time between two of its chunks, in seconds."""
    _refusals: list[_Refusal] = field(default_factory=list)

    def count(self, name: str, request: ClientRequest, transcript: Transcript, verdict: Verdict) -> None:
        """Count a visit; `name` identifies it in the report."""
        self.outcomes[verdict.outcome] += 1
        if verdict.outcome in REFUSALS:
            self._refusals.append(_Refusal(name, transcript.request_id, fingerprint(request), verdict.outcome))
        elif verdict.outcome == "answered" and request.streaming:
            self.gaps.append((transcript.request_id, transcript.gap()))
        if verdict.problem:
            self._violated(name, verdict)

    def explain(self, failures: Mapping[str, Sequence[Failures]]) -> None:
        """Count a violation for each error that the failures do not explain (see
        `bench.soak_test.server_log.failures`). Call it once, after the last visit."""
        attributed: set[str] = set()
        for each in self._refusals:
            seen = failures.get(each.request, ())
            if explained(each.code, seen):
                attributed.add(each.fingerprint)
            elif each.code == "quarantined" and not seen and each.fingerprint in attributed:
                self.outcomes[each.code] -= 1
                self.outcomes["refused at the door"] += 1
            else:
                self._violated(each.name, Verdict(each.code, f"not explained by {list(seen) or 'any failure'}"))

    @property
    def refused(self) -> int:
        """Visits that ended with one of `REFUSALS`, explained or not."""
        return len(self._refusals)

    @property
    def too_many(self) -> str:
        """Text if more visits were refused than allowed, else empty."""
        total = self.outcomes.total()
        if self.refused <= max(FEW, MOST_REFUSED * total):
            return ""
        share = self.refused / total
        return f"{self.refused} of {total} visits ({share:.1%}) were refused, more than {MOST_REFUSED:.0%}"

    def gap_figures(self, failures: Container[str]) -> list[list[str]]:
        """Table rows (which streams, how many, p50, p99, longest in ms) of streams that lost a worker, and of
        others."""
        lost = sorted(gap for request, gap in self.gaps if request in failures)
        others = sorted(gap for request, gap in self.gaps if request not in failures)
        return [_figures("lost a worker", lost), _figures("did not", others)]

    def _violated(self, name: str, verdict: Verdict) -> None:
        self.violations += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{name}: {verdict.outcome}: {verdict.problem}")


def _figures(which: str, gaps: list[float]) -> list[str]:
    found = (percentile(gaps, 0.5), percentile(gaps, 0.99), gaps[-1] if gaps else None)
    return [which, str(len(gaps)), *("-" if gap is None else f"{1e3 * gap:.0f}" for gap in found)]
