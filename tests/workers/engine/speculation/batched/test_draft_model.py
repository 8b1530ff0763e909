"""Drafts of a smaller model change nothing but the speed."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from protocol.request import Bias, Sampling
from tests.workers.engine.harness.batched import always_by, drafting_with
from tests.workers.engine.speculation.test_speculation import CONTEXT, VOCAB, Outcome, run, runner, some, with_grammar
from workers.engine.engine import BatchEngine
from workers.engine.request import Constraint, ConstraintFailed, EngineRequest
from workers.engine.runner import Chunk, DecodeRow
from workers.engine.speculation.batched.batch_drafting import BatchDrafting
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import ScriptedRunner


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


def tokens_of(outcome: Outcome) -> list[int]:
    return [token.token for token in outcome.tokens[1]]


REQUEST = EngineRequest(1, (97, 98) * 8, Sampling(temperature=0.7, seed=5), max_tokens=60)


class Breaking(ScriptedRunner):
    """Fails in one of its calls, from some of them on."""

    def __init__(self, call: str, after: int, how: str) -> None:
        super().__init__(slots=4, context=CONTEXT, vocab_size=VOCAB, prefill_chunks=(4, 16), decode_rows=12)
        self.left = {call: after}
        self.how = how

    def _count(self, call: str) -> bool:
        self.left[call] = self.left.get(call, 1 << 30) - 1
        if self.left[call] < 0 and self.how == "raises":
            raise RuntimeError("a bug")
        return self.left[call] < 0

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self._count("prefill")
        return super().prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        not_finite = self._count("decode")
        sampled = super().decode(rows)
        return [None] * len(sampled) if not_finite else sampled

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._count("copy")
        super().copy_prefix(source, target, length)

    def reset(self, slot: int) -> None:
        self._count("reset")
        super().reset(slot)


@pytest.mark.parametrize(
    ("call", "after", "how"),
    [
        ("prefill", 0, "raises"),
        ("decode", 0, "raises"),
        ("decode", 5, "raises"),
        ("decode", 5, "is not finite"),
        ("copy", 0, "raises"),
        ("reset", 0, "raises"),
    ],
)
def test_a_draft_model_that_fails_drafts_no_more_and_the_streams_go_on(call: str, after: int, how: str) -> None:
    requests = [REQUEST, replace(REQUEST, stream=2, max_tokens=70)]
    plain = run(runner(), requests, None)
    device = runner()
    drafting = drafting_with(Breaking(call, after, how))
    with capture_logs() as logs:
        drafted = run(device, requests, always_by(drafting, device.capabilities))
    assert [drafted.of(stream) for stream in (1, 2)] == [plain.of(stream) for stream in (1, 2)]
    assert drafted.gauges.drafters_failed == 1
    assert [log["event"] for log in logs] == ["drafter_failed"]
    assert drafted.gauges.decode_steps > 10


def test_a_model_that_is_always_right_takes_fewer_steps() -> None:
    device = runner()
    drafted = run(device, [REQUEST], always_by(drafting_with(runner()), device.capabilities))
    assert drafted.gauges.accepted_tokens == drafted.gauges.draft_tokens > 40
    assert drafted.gauges.decode_steps < 20
    outcome = run(
        runner(), [replace(REQUEST, speculate=False)], always_by(drafting_with(runner()), device.capabilities)
    )
    assert outcome.gauges.decode_steps == 59
    assert tokens_of(outcome) == tokens_of(drafted)


class Recording(ScriptedRunner):
    """Keeps the number of rows of each call."""

    def __init__(self, **fields: Any) -> None:
        options: dict[str, Any] = {"slots": 4, "context": CONTEXT, "prefill_chunks": (4, 16), "decode_rows": 12}
        super().__init__(vocab_size=VOCAB, alphabet=(97, 98), **(options | fields))
        self.prefilled: list[int] = []
        self.decoded: list[int] = []

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self.prefilled += [len(chunk.tokens) for chunk in chunks]
        return super().prefill(chunks, specs)

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        self.decoded.append(len(rows))
        return super().decode(rows)


def test_a_prompt_is_computed_a_chunk_at_a_time() -> None:
    device, draft = runner(), Recording()
    request = EngineRequest(1, (97,) * 41, max_tokens=50)
    run(device, [request], always_by(drafting_with(draft), device.capabilities))
    assert draft.prefilled[:10] == [4] * 10, "a chunk for each step"
    assert not draft.violations


@pytest.mark.parametrize("rows", [2, 3, 12])
def test_a_step_of_the_draft_model_has_no_more_rows_than_it_takes(rows: int) -> None:
    device, draft = runner(), Recording(decode_rows=rows)
    drafting = drafting_with(draft, lambda: 2)
    requests = [replace(REQUEST, stream=stream) for stream in range(1, 5)]
    drafted = run(device, requests, always_by(drafting, device.capabilities))
    assert max(draft.decoded) <= max(rows, 4)
    assert not draft.violations
    assert not drafting.failures
    assert drafted.gauges.accepted_tokens == drafted.gauges.draft_tokens > 20


def test_a_context_of_the_draft_model_that_is_shorter_ends_its_drafts() -> None:
    device, draft = runner(), runner(context=40)
    drafted = run(device, [REQUEST], always_by(drafting := drafting_with(draft), device.capabilities))
    assert tokens_of(drafted) == tokens_of(run(runner(), [REQUEST], None))
    assert 0 < drafted.gauges.draft_tokens <= 40 - len(REQUEST.prompt)
    assert not drafting.failures
    assert not draft.violations


def test_a_token_that_only_the_target_knows_ends_drafts_of_its_sequence() -> None:
    def large() -> ScriptedRunner:
        options: dict[str, Any] = {"slots": 4, "context": CONTEXT, "prefill_chunks": (4, 16), "decode_rows": 12}
        return ScriptedRunner(vocab_size=700, alphabet=(97,) * 40 + (600,), **options)

    request = replace(REQUEST, sampling=Sampling(temperature=1.0, seed=2, logit_bias=(Bias(600, 1.0), Bias(5, -1.0))))
    plain = run(large(), [request], None)
    assert 600 in tokens_of(plain)
    device, draft = large(), runner((97,))
    drafted = run(device, [request], always_by(drafting := drafting_with(draft), device.capabilities))
    assert drafted.of(1) == plain.of(1)
    assert drafted.gauges.accepted_tokens > 0
    assert not drafting.failures
    assert not draft.violations


def test_a_sequence_that_ends_leaves_nothing_in_the_draft_model() -> None:
    device, draft = runner(), runner(prefill_chunks=(16,))
    model = DraftModel(draft)
    times = itertools.count()
    engine = BatchEngine(
        device,
        max_queue=9,
        step_tokens=64,
        speculator=always_by(BatchDrafting(model, 0.1, clock=lambda: 0.0), device.capabilities),
        clock=lambda: next(times) / 1000,
    )
    for stream in (1, 2):
        engine.submit(replace(REQUEST, stream=stream))
    for _ in range(14):
        engine.step()
    assert engine.gauges().draft_tokens > 0
    engine.cancel(1)
    engine.step()
    assert sum(draft._written(slot) > 0 for slot in range(4)) == 1
    engine.cancel(2)
    engine.submit(EngineRequest(3, (97,), max_tokens=3))
    while not engine.idle:
        engine.step()
    model.follow([])
    assert [draft._written(slot) for slot in range(4)] == [0] * 4


class Repeats(Constraint):
    """Allows one token so often, and is complete then, or fails: only its mask shows it."""

    ended: bool | None = False

    def __init__(self, times: int, error: ConstraintFailed | None) -> None:
        self.left = times
        self._error = error

    def accept(self, token: int) -> None:
        self.left -= 1

    def fork(self) -> "Repeats":
        return Repeats(self.left, self._error)

    def forced(self) -> Sequence[int]:
        return ()

    def mask(self) -> NDArray[np.uint32]:
        words = np.zeros(VOCAB // 32, np.uint32)
        if self.left > 0:
            words[97 // 32] = 1 << 97 % 32
        elif self._error is not None:
            raise self._error
        return words


@pytest.mark.parametrize("error", [None, ConstraintFailed("no token", "guided_regex")], ids=["complete", "failing"])
def test_an_answer_that_only_its_late_mask_ends_has_the_same_end(error: ConstraintFailed | None) -> None:
    def request() -> EngineRequest:
        return EngineRequest(1, (97, 98), max_tokens=60, constraint=Repeats(20, error))

    plain = run(runner(), [request()], None)
    device, draft = runner(), runner()
    drafted = run(device, [request()], always_by(drafting := drafting_with(draft), device.capabilities))
    assert drafted.of(1) == plain.of(1)
    if error is None:
        assert drafted.ends[1].reason == "stop"
    else:
        assert drafted.failures[1].text == "no token"
    assert drafted.gauges.accepted_tokens > 5
    assert not drafting.failures
    assert not draft.violations


class Faulty(Repeats):
    """Raises what is no `ConstraintFailed`, in a copy alone."""

    def __init__(self, times: int, where: str, *, copied: bool = False) -> None:
        super().__init__(times, None)
        self.where = where
        self._copied = copied

    def accept(self, token: int) -> None:
        super().accept(token)
        if self._copied and self.where == "accept":
            raise KeyError("a bug")

    def fork(self) -> "Faulty":
        if self.where == "fork":
            raise KeyError("a bug")
        return Faulty(self.left, self.where, copied=True)


@pytest.mark.parametrize("where", ["accept", "fork"])
def test_an_error_of_one_constraint_ends_the_drafts_of_its_sequence_alone(where: str) -> None:
    def requests() -> list[EngineRequest]:
        return [REQUEST, EngineRequest(2, (97, 98), max_tokens=60, constraint=Faulty(40, where))]

    plain = run(runner(), requests(), None)
    device = runner()
    with capture_logs() as logs:
        drafted = run(device, requests(), always_by(drafting := drafting_with(runner()), device.capabilities))
    assert [drafted.of(stream) for stream in (1, 2)] == [plain.of(stream) for stream in (1, 2)]
    assert not drafting.failures
    assert drafted.gauges.accepted_tokens > 40, "of the other one"
    assert [(log["event"], log["stream"]) for log in logs] == [("draft_failed", 2)]
