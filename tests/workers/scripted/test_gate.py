"""The gate itself: it passes on the scripted runner, and fails on runners that mix up rows."""

from collections.abc import Sequence

import pytest

from tests.gate import run_gate
from workers.engine.runner import DecodeRow
from workers.scripted.runner import ScriptedRunner


def make_runner() -> ScriptedRunner:
    return ScriptedRunner(slots=8, context=64, prefill_chunks=(4, 16, 32))


def test_the_gate_passes_on_the_scripted_runner_and_covers_all_cases() -> None:
    report = run_gate(make_runner)
    assert report.requests >= 32
    assert report.most_active == 8
    assert min(report.cancelled, report.resumed, report.stopped, report.full, report.masked) >= 1
    assert min(report.reported, report.prompts_reported, report.shared, report.grammars, report.complete) >= 1


def test_the_gate_passes_while_requests_are_preempted() -> None:
    report = run_gate(make_runner, preempts=True, max_tokens=40)
    assert report.preemptions > 10
    assert min(report.cancelled, report.resumed, report.stopped, report.full, report.masked) >= 1
    assert min(report.reported, report.prompts_reported, report.grammars, report.complete) >= 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("preempts", [False, True])
def test_the_gate_passes_with_drafts(preempts: bool, seed: int) -> None:
    def make() -> ScriptedRunner:
        return ScriptedRunner(slots=8, context=64, prefill_chunks=(4, 16, 32), decode_rows=20)

    report = run_gate(make, preempts=preempts, max_tokens=40, speculates=True, seed=seed)
    assert report.drafted > 30
    assert report.drafted * 0.3 < report.accepted < report.drafted * 0.9
    assert min(report.cancelled, report.resumed, report.stopped, report.full, report.masked) >= 1
    assert min(report.reported, report.prompts_reported, report.grammars, report.complete) >= 1


class Leaky(ScriptedRunner):
    """Runner whose samples depend on the batch size: more than four rows change them."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        tokens = super().decode(rows)
        return [None if token is None else token ^ 1 for token in tokens] if len(rows) > 4 else tokens


def test_the_gate_finds_a_token_that_depends_on_the_batch() -> None:
    with pytest.raises(AssertionError, match="stream"):
        run_gate(lambda: Leaky(slots=8, context=64, prefill_chunks=(4, 16, 32)))
