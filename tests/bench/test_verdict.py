"""What the server owes a visit: one end, and the undisturbed answer as far as it was heard."""

import copy
from collections.abc import Callable

import pytest

from bench.verdict import SHOWN, Tally, Verdict, judge
from cli.chaos.asking import Request
from cli.chaos.heard import Choice, Heard

REQUEST = Request("/v1/completions", {"n": 2})
WHOLE = Heard(200, {0: Choice("ab", [1, 2], ["stop"]), 1: Choice("c", [3], ["length"])}, {"id"}, [(5, 3)], ends=1)


def heard(change: Callable[[Heard], object]) -> Heard:
    found = copy.deepcopy(WHOLE)
    change(found)
    return found


def fail(code: str) -> Callable[[Heard], object]:
    def change(found: Heard) -> None:
        found.errors.append((code, "no"))
        found.usages.clear()

    return change


@pytest.mark.parametrize(
    ("change", "outcome", "said"),
    [
        pytest.param(lambda h: None, "answered", "", id="same"),
        pytest.param(lambda h: setattr(h, "ends", 0), "no end", "0 ends", id="no end"),
        pytest.param(lambda h: setattr(h, "ends", 2), "no end", "2 ends", id="two ends"),
        pytest.param(lambda h: setattr(h, "late", 1), "no end", "1 events after", id="more after the end"),
        pytest.param(lambda h: h.usages.clear(), "no end", "0 usages", id="no usage"),
        pytest.param(lambda h: h.usages.append((5, 3)), "no end", "2 usages", id="two usages"),
        pytest.param(lambda h: h.answers.add("other"), "no end", "ids", id="another id"),
        pytest.param(lambda h: h.choices[0].reasons.clear(), "no end", "finish reasons", id="no reason"),
        pytest.param(lambda h: h.choices.pop(1), "no end", "2 choices asked for", id="a choice less"),
        pytest.param(lambda h: h.choices[0].ids.append(2), "altered", "token 2 of 2: [2], not []", id="a token more"),
        pytest.param(lambda h: h.choices[0].ids.pop(), "altered", "not Choice", id="a token less"),
        pytest.param(lambda h: h.choices[1].ids.__setitem__(0, 9), "altered", "choice 1, token 0", id="another token"),
        pytest.param(lambda h: setattr(h.choices[0], "text", "ax"), "altered", "not Choice", id="another character"),
        pytest.param(lambda h: h.usages.__setitem__(0, (5, 4)), "altered", "usage", id="another count"),
        pytest.param(lambda h: h.choices.__setitem__(2, Choice()), "altered", "not asked for", id="a choice more"),
        pytest.param(fail("quarantined"), "quarantined", "", id="an error that may be"),
        pytest.param(fail("worker_lost"), "worker_lost", "200 worker_lost: no", id="an error that may not be"),
    ],
)
def test_a_client_that_stayed(change: Callable[[Heard], object], outcome: str, said: str) -> None:
    verdict = judge(REQUEST, heard(change), True, WHOLE)
    assert verdict.outcome == outcome
    assert bool(verdict.problem) == bool(said)
    assert said in verdict.problem


def test_a_client_that_left_must_have_heard_a_beginning() -> None:
    part = Heard(200, {0: Choice("a", [1])})
    assert judge(REQUEST, part, False, WHOLE) == Verdict("left")
    assert judge(REQUEST, Heard(), False, WHOLE) == Verdict("left")
    part.choices[0].ids = [7]
    assert judge(REQUEST, part, False, WHOLE).problem


def test_what_is_left_to_chance_must_only_end() -> None:
    other = heard(lambda h: h.choices[0].ids.append(9))
    assert judge(REQUEST, other, True, None) == Verdict("answered")


def test_violations_are_counted_all_and_told_up_to_a_bound() -> None:
    tally = Tally()
    for turn in range(SHOWN + 5):
        tally.count(f"visit {turn}", Verdict("altered", "so"))
    tally.count("good", Verdict("answered"))
    assert (tally.violations, len(tally.told)) == (SHOWN + 5, SHOWN)
    assert tally.outcomes == {"altered": SHOWN + 5, "answered": 1}
    assert tally.told[0] == "visit 0: altered: so"
