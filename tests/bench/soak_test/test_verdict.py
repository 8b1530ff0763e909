"""The verdict on a visit: one end, and the undisturbed answer or a prefix of it."""

import copy
from collections.abc import Callable

import pytest

from bench.soak_test.server_log import Failures
from bench.soak_test.verdict import FEW, MOST_REFUSED, SHOWN, Verdict, VisitTally, explained, fingerprint, judge
from cli.chaos.http_client import ClientRequest
from cli.chaos.transcript import ChoiceTranscript, Transcript
from gateway.routing.failure_attribution import MAX_TRIES

REQUEST = ClientRequest("/v1/completions", {"n": 2})
WHOLE = Transcript(
    200,
    {0: ChoiceTranscript("ab", [1, 2], ["stop"]), 1: ChoiceTranscript("c", [3], ["length"])},
    {"id"},
    [(5, 3)],
    ends=1,
)


def transcript(change: Callable[[Transcript], object]) -> Transcript:
    found = copy.deepcopy(WHOLE)
    change(found)
    return found


def fail(code: str) -> Callable[[Transcript], object]:
    def change(found: Transcript) -> None:
        found.errors.append((code, "no"))
        found.usages.clear()

    return change


@pytest.mark.parametrize(
    ("change", "outcome", "said"),
    [
        pytest.param(lambda h: None, "answered", "", id="same"),
        pytest.param(lambda h: setattr(h, "ends", 0), "lost", "0 ends", id="no end"),
        pytest.param(lambda h: setattr(h, "ends", 2), "duplicated", "2 ends", id="two ends"),
        pytest.param(lambda h: setattr(h, "late", 1), "duplicated", "1 events after", id="more after the end"),
        pytest.param(lambda h: h.usages.clear(), "lost", "0 usages", id="no usage"),
        pytest.param(lambda h: h.usages.append((5, 3)), "lost", "2 usages", id="two usages"),
        pytest.param(lambda h: h.response_ids.add("other"), "lost", "ids", id="another id"),
        pytest.param(lambda h: h.choices[0].reasons.clear(), "lost", "finish reasons", id="no reason"),
        pytest.param(lambda h: h.choices.pop(1), "lost", "2 choices asked for", id="a choice less"),
        pytest.param(
            lambda h: h.choices[0].ids.append(2), "duplicated", "token 2 of 2: [2], not []", id="a token more"
        ),
        pytest.param(lambda h: h.choices[0].ids.pop(), "altered", "not Choice", id="a token less"),
        pytest.param(lambda h: h.choices[1].ids.__setitem__(0, 9), "altered", "choice 1, token 0", id="another token"),
        pytest.param(lambda h: setattr(h.choices[0], "text", "ax"), "altered", "not Choice", id="another character"),
        pytest.param(lambda h: h.usages.__setitem__(0, (5, 4)), "altered", "usage", id="another count"),
        pytest.param(
            lambda h: h.choices.__setitem__(2, ChoiceTranscript()), "altered", "not asked for", id="a choice more"
        ),
        pytest.param(fail("quarantined"), "quarantined", "", id="an error that may be"),
        pytest.param(fail("worker_lost"), "worker_lost", "200 worker_lost: no", id="an error that may not be"),
    ],
)
def test_a_client_that_stayed(change: Callable[[Transcript], object], outcome: str, said: str) -> None:
    verdict = judge(REQUEST, transcript(change), True, WHOLE)
    assert verdict.outcome == outcome
    assert bool(verdict.problem) == bool(said)
    assert said in verdict.problem


def test_a_client_that_left_must_have_received_a_prefix() -> None:
    part = Transcript(200, {0: ChoiceTranscript("a", [1])})
    assert judge(REQUEST, part, False, WHOLE) == Verdict("left")
    assert judge(REQUEST, Transcript(), False, WHOLE) == Verdict("left")
    part.choices[0].ids = [7]
    assert judge(REQUEST, part, False, WHOLE).problem


def test_what_is_left_to_chance_must_only_end() -> None:
    other = transcript(lambda h: h.choices[0].ids.append(9))
    assert judge(REQUEST, other, True, None) == Verdict("answered")


def count(tally: VisitTally, outcome: str, problem: str = "", *, request: str = "r", prompt: str = "p") -> None:
    transcript = Transcript(request_id=request)
    tally.count(
        f"visit {request}", ClientRequest("/v1/completions", {"prompt": prompt}), transcript, Verdict(outcome, problem)
    )


def test_all_violations_are_counted_and_some_are_shown() -> None:
    tally = VisitTally()
    for turn in range(SHOWN + 5):
        count(tally, "altered", "so", request=str(turn))
    count(tally, "answered")
    assert (tally.violations, len(tally.shown)) == (SHOWN + 5, SHOWN)
    assert tally.outcomes == {"altered": SHOWN + 5, "answered": 1}
    assert tally.shown[0] == "visit 0: altered: so"


@pytest.mark.parametrize(
    ("code", "sequences", "enough"),
    [
        ("quarantined", [], False),
        ("quarantined", [Failures(1, MAX_TRIES - 2)], False),
        ("quarantined", [Failures(1, 0), Failures(1, 0)], False),
        ("quarantined", [Failures(0, 0), Failures(2, 0)], True),
        ("quarantined", [Failures(0, MAX_TRIES)], True),
        ("quarantined", [Failures(1, MAX_TRIES - 1)], True),
        ("step_failed", [], False),
        ("step_failed", [Failures(0, MAX_TRIES - 2)], False),
        ("step_failed", [Failures(1, 0)], True),
        ("not_finite", [], False),
        ("not_finite", [Failures(1, 0)], True),
        ("step_failed", [Failures(0, MAX_TRIES - 1)], True),
    ],
)
def test_an_error_must_be_explained_by_failures(code: str, sequences: list[Failures], enough: bool) -> None:
    assert explained(code, sequences) == enough
    tally = VisitTally()
    count(tally, code, request="a")
    tally.explain({"a": sequences, "other": [Failures(9, 9)]})
    assert tally.outcomes == {code: 1}
    assert tally.violations == (not enough)
    assert ("not explained" in "".join(tally.shown)) == (not enough)


def test_what_is_refused_at_the_door_must_be_like_one_that_was_quarantined_before() -> None:
    tally = VisitTally()
    count(tally, "quarantined", request="early", prompt="p")
    count(tally, "quarantined", request="first", prompt="p")
    count(tally, "quarantined", request="again", prompt="p")
    count(tally, "quarantined", request="other", prompt="q")
    tally.explain({"first": [Failures(2, 0)]})
    assert [text.split(":")[0] for text in tally.shown] == ["visit early", "visit other"]
    assert tally.outcomes == {"quarantined": 3, "refused at the door": 1}


def test_requests_are_kin_that_a_gateway_refuses_together() -> None:
    one = {"prompt": "p", "temperature": 0.7, "seed": 1, "max_tokens": 3, "n": 2, "stream": True}
    assert fingerprint(ClientRequest("", one)) == fingerprint(
        ClientRequest("", one | {"seed": 2, "max_tokens": 4, "n": 1})
    )
    assert fingerprint(ClientRequest("", one)) != fingerprint(ClientRequest("", one | {"temperature": 0.0}))
    assert fingerprint(ClientRequest("", one)) != fingerprint(ClientRequest("", one | {"prompt": "q"}))


@pytest.mark.parametrize(("visits", "most"), [(0, FEW), (100, FEW), (1000, int(1000 * MOST_REFUSED))])
def test_few_may_be_refused(visits: int, most: int) -> None:
    tally = VisitTally()
    for number in range(visits - most):
        count(tally, "answered", request=str(number))
    for number in range(most):
        count(tally, "quarantined", request=f"q{number}")
    assert tally.too_many == ""
    count(tally, "step_failed")
    assert "were refused, more than 1%" in tally.too_many


def test_gaps_are_of_streams_that_lost_a_worker_and_of_the_others() -> None:
    tally = VisitTally()
    stream = ClientRequest("/v1/completions", {"stream": True})
    for name, end in (("a", 0.5), ("b", 0.1)):
        tally.count(name, stream, Transcript(request_id=name, stamps=[0.0, end]), Verdict("answered"))
    tally.count(
        "c", ClientRequest("/v1/completions", {}), Transcript(request_id="c", stamps=[0.0, 9.0]), Verdict("answered")
    )
    assert tally.gap_figures({"a", "c"}) == [
        ["lost a worker", "1", "500", "500", "500"],
        ["did not", "1", "100", "100", "100"],
    ]
    assert VisitTally().gap_figures(set()) == [["lost a worker", "0", "-", "-", "-"], ["did not", "0", "-", "-", "-"]]
