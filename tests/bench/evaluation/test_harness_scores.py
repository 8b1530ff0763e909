"""Results of lm-evaluation-harness, which is not installed for the tests, as the script reads them."""

from pathlib import Path

import pytest

from bench.evaluation.harness_scores import EvaluationError, Harness, Likelihood, likelihoods

CHOICE = {
    "arguments": {"gen_args_0": {"arg_0": "A", "arg_1": " b"}, "gen_args_1": {"arg_0": "A", "arg_1": " c"}},
    "resps": [[["-1.5", "True"]], [["-2.25", "False"]]],
}
TEXT = {"arguments": {"gen_args_0": {"arg_0": "A b"}}, "resps": [["-3.0"]]}
GENERATED = {"arguments": {"gen_args_0": {"arg_0": "A", "arg_1": {"until": ["x"]}}}, "resps": [["b"]]}


def test_choices_have_log_likelihoods() -> None:
    assert list(likelihoods(CHOICE)) == [Likelihood("A", " b", -1.5), Likelihood("A", " c", -2.25)]
    assert not [*likelihoods(TEXT), *likelihoods(GENERATED)]


def test_scores_are_read(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    results = '{"results": {"t": {"alias": "t", "sample_len": 3, "acc,none": 0.5, "acc_stderr,none": 0.1}}}'
    (tmp_path / "m" / "results_1.json").write_text(results)
    assert list(Harness("x", "", tmp_path, tmp_path).scores()) == [("t", "acc", 0.5)]


def test_a_harness_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="status 1"):
        Harness("false", "", tmp_path, tmp_path).run("local-completions", "", ["t"])
