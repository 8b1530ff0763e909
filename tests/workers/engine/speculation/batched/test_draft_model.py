"""Drafts of a smaller model change nothing but the speed."""

import random
from typing import Any

import pytest

from tests.workers.engine.harness.batched import always_by, drafting_with
from tests.workers.engine.speculation.test_speculation import CONTEXT, run, runner, some, with_grammar


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("room", [{}, {"kv_tokens": CONTEXT, "reserved_rows": 8}], ids=["roomy", "preempting"])
@pytest.mark.parametrize("alphabet", [(97, 98), (97, 98, 97, 99)], ids=["same", "other"])
def test_drafts_of_a_model_change_nothing(seed: int, room: dict[str, Any], alphabet: tuple[int, ...]) -> None:
    randomness = random.Random(seed)
    requests = [some(randomness, stream) for stream in range(12)]
    plain = run(runner(), [with_grammar(each) for each in requests], None, **room)
    device, draft = runner(), runner(alphabet)
    drafting = drafting_with(draft, lambda: randomness.randint(0, 5))
    speculator = always_by(drafting, device.capabilities, beside_prompts=True)
    drafted = run(device, [with_grammar(each) for each in requests], speculator, **room)
    for request in requests:
        assert drafted.of(request.stream) == plain.of(request.stream), request
    assert not draft.violations, draft.violations
    assert not drafting.failures
    assert drafted.gauges.draft_tokens > 50
    if alphabet == (97, 98):
        assert drafted.gauges.accepted_tokens == drafted.gauges.draft_tokens, "the noise is the same"
    else:
        assert 0 < drafted.gauges.accepted_tokens < drafted.gauges.draft_tokens
