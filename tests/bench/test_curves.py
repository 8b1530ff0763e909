import pytest

from bench.curves import arguments, turns


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rounds", "0"], "argument --rounds: must be 1 or more, not 0"),
        (["--steps", "0"], "argument --steps: must be 1 or more, not 0"),
        (["--all-rows", "8", "0"], "argument --all-rows: must be 1 or more, not 0"),
        (["--quantize", "int3"], "argument --quantize: invalid choice: 'int3'"),
        (["--rows", "--all-rows"], "argument --all-rows: without --rows as well there is no curve to measure"),
        (["--contexts", "3", "--steps", "7"], "argument --contexts: 3 tokens are not more than half of --steps 7"),
    ],
)
def test_what_would_measure_nothing_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments(words)
    assert says in capsys.readouterr().err


def test_quick_is_what_was_not_given() -> None:
    args = arguments(["--models", "tiny", "--quick", "--rows", "2", "4"])
    assert (args.models, args.rows, args.contexts, args.all_rows) == (["tiny"], [2, 4], [256, 1024, 2048], [1, 2, 4, 8])
    assert arguments(["--quick"]).models == ["110m"]
    assert arguments([]).rows == [1, 4]


def test_either_curve_can_be_left_out() -> None:
    assert arguments(["--rows"]).rows == []
    assert arguments(["--all-rows", "--contexts", "4"]).all_rows == []


def test_rounds_take_all_points_each_in_an_order_of_its_own() -> None:
    first, second = turns(32, 2, shuffled=True)
    assert sorted(first) == sorted(second) == list(range(32))
    assert first != second
    assert list(turns(3, 2, shuffled=False)) == [[0, 1, 2], [0, 1, 2]]
