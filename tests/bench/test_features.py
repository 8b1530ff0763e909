"""The comparison of `bench/features.py --parts equality`: each difference between two answers is found. The model whose
answers are known, by which `--parts peers` compares engines."""

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.constructed.successor import answer, make_successor
from bench.feature_parts.equality import differences
from bench.feature_parts.speculating_peers import LOADS, mlx_lm, prompt_of, table
from bench.harness.shapes import TOKENS
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


def test_the_answer_is_in_one_prompt_and_not_in_the_other() -> None:
    quoted, new = (prompt_of(load, 3) for load in LOADS)
    following = answer(quoted[-1], 8)
    assert any(quoted[at : at + 8] == following for at in range(len(quoted)))
    pairs = set(pairwise(new))
    assert not any((token, TOKENS[at + 1]) in pairs for at, token in enumerate(TOKENS[:-1]))
    assert answer(TOKENS[-1], 2) == [TOKENS[0], TOKENS[1]]


def test_engines_are_compared_by_the_same_answers(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")
    assert make_successor(tmp_path, "tiny", 0.9).name == "successor-tiny-0.9"
    for decode in mlx_lm(tmp_path, "tiny", "tiny").values():
        assert decode([TOKENS[9], TOKENS[4]], 6) > 0.0, "it ends the process if the answer is another one"


def test_each_engine_is_shown_beside_itself_without_drafts() -> None:
    speeds = {"off": lambda *_: 10.0, "lookup": lambda *_: 25.0}
    lines = list(table({"one": speeds}, 12, 1))
    assert [line.split() for line in lines] == [
        ["one", load, "off", "10.0", "lookup", "25.0", "(2.50x)"] for load in LOADS
    ]
