"""The prefix gate passes on the scripted runner, and fails on a runner that copies wrong rows."""

import pytest

from tests.prefix_gate import run_prefix_gate
from workers.scripted.runner import ScriptedRunner


@pytest.mark.parametrize(
    ("exact_rows", "begin"), [pytest.param(True, 19, id="anywhere"), pytest.param(False, 40, id="at-chunk-ends")]
)
def test_the_gate_passes_on_the_scripted_runner_and_covers_all_cases(exact_rows: bool, begin: int) -> None:
    made = []

    def make() -> ScriptedRunner:
        made.append(ScriptedRunner(slots=4, context=256, prefill_chunks=(8, 16), exact_rows=exact_rows))
        return made[0]

    report = run_prefix_gate(make, begin=begin)
    assert report.requests == 18
    assert report.hits > 9
    assert min(report.in_place, report.copies, report.tokens) > 0
    assert made[0].violations == []


class Careless(ScriptedRunner):
    """Runner that copies rows of the slot beside the source."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        super().copy_prefix(source, target, length)
        self._history[target][-1] += source != target


def test_the_gate_finds_a_wrong_row() -> None:
    with pytest.raises(AssertionError, match="got"):
        run_prefix_gate(lambda: Careless(slots=4, context=256, prefill_chunks=(8, 16)))
