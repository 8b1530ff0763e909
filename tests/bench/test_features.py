"""The comparison of `bench/features.py --parts equality`: each difference between two answers is found."""

from copy import deepcopy
from typing import Any

import pytest

from bench.feature_parts.equality import differences
from cli.chaos.http_client import ClientRequest
from cli.chaos.transcript import ChoiceTranscript, Transcript

REQUEST = ClientRequest("/v1/completions", {"prompt": "a"})
ANSWER = Transcript(
    choices={0: ChoiceTranscript("text", [1, 2], ["stop"])}, response_ids={"cmpl-1"}, usages=[(3, 2)], ends=1
)


def test_equal_answers_have_no_differences() -> None:
    assert list(differences([REQUEST], [ANSWER], [deepcopy(ANSWER)])) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"choices": {0: ChoiceTranscript("texT", [1, 2], ["stop"])}}, "not {0: "),
        ({"choices": {0: ChoiceTranscript("text", [1, 3], ["stop"])}}, "not {0: "),
        ({"choices": {0: ChoiceTranscript("text", [1, 2], ["length"])}}, "not {0: "),
        ({"choices": {0: ChoiceTranscript("text", [1, 2])}}, "finish reasons by choice"),
        ({"usages": [(3, 3)]}, "not {0: "),
        ({"errors": [("lost", "no worker")]}, "lost: no worker"),
        ({"ends": 0}, "0 ends"),
    ],
)
@pytest.mark.parametrize("side", ["plain", "with features"])
def test_every_kind_of_difference_is_found(changed: dict[str, Any], problem: str, side: str) -> None:
    other = deepcopy(ANSWER)
    for name, value in changed.items():
        setattr(other, name, value)
    answers = ([other], [ANSWER]) if side == "plain" else ([ANSWER], [other])
    (line,) = differences([REQUEST], *answers)
    assert line.startswith("request 0, ")
    assert problem in line
