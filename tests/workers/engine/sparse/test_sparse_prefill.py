"""Sparse prefill in the engine: positions, isolation, replay, cancellation, and failures of the draft model."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from protocol.commands import ReadRows
from protocol.errors import ErrorCode
from protocol.request import Sampling
from tests.workers.engine.harness.batched import always_by, drafting_by
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.runner import Chunk
from workers.engine.sparse.kept_rows import Ranges
from workers.engine.sparse.selection import forced_ranges
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.engine.speculation.batched.draft_model import DraftModel
from workers.engine.step_result import SequenceEnd, SequenceStart, StepResult
from workers.sampling.sample_spec import SampleSpec
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

CONTEXT = 640
PROMPT = tuple(random.Random(1).choices(range(97, 123), k=500))
PART = SparsePrompt(0.3, forced_ranges(len(PROMPT)))


def runner(**fields: Any) -> ScriptedRunner:
    defaults: dict[str, Any] = {
        "slots": 3,
        "context": CONTEXT,
        "prefill_chunks": (16, 64),
        "decode_rows": 12,
        "sparse": True,
    }
    return ScriptedRunner(**defaults | fields)


def request(stream: int = 1, sparse: SparsePrompt | None = PART, **fields: Any) -> EngineRequest:
    defaults: dict[str, Any] = {"prompt": PROMPT, "sampling": Sampling(temperature=0.8, seed=stream), "max_tokens": 100}
    return EngineRequest(stream, sparse=sparse, **defaults | fields)


class Engine:
    """An engine on scripted runners, with what it has reported."""

    def __init__(
        self,
        *,
        draft: ScriptedRunner | None = None,
        speculates: bool = False,
        beside_prompts: bool = True,
        pays: Callable[[int], bool] = lambda tokens: True,
        slots: int = 3,
        **options: Any,
    ) -> None:
        self.target, self.draft = runner(slots=slots), draft or runner(slots=slots)
        self.drafter = DraftModel(self.draft)
        drafting = drafting_by(self.drafter, lambda: 3)
        speculator = (
            always_by(drafting, self.target.capabilities, beside_prompts=beside_prompts) if speculates else None
        )
        self.sparse = SparsePrefill(self.draft, self.drafter, pays)
        defaults = {"max_queue": 8, "step_tokens": 64}
        self.engine = BatchEngine(self.target, speculator=speculator, sparse=self.sparse, **defaults | options)
        self.starts: dict[int, SequenceStart] = {}
        self.ends: dict[int, SequenceEnd] = {}
        self._tokens: dict[int, list[int]] = {}

    def step(self) -> StepResult:
        result = self.engine.step()
        assert not result.failures
        self.starts |= {each.stream: each for each in result.starts}
        self.ends |= {each.stream: each for each in result.ends}
        for token in result.tokens:
            self._tokens.setdefault(token.stream, []).append(token.token)
        return result

    def run(self, *requests: EngineRequest) -> "Engine":
        for each in requests:
            self.engine.submit(each)
        while not self.engine.idle:
            self.step()
        assert not self.target.violations
        assert not self.draft.violations
        assert len(self.drafter._free) + len(self.drafter._cached) == self.draft.capabilities.slots
        return self

    def tokens(self, stream: int = 1) -> list[int]:
        return self._tokens[stream]


def kept_of(engine: Engine, stream: int = 1) -> Ranges:
    return engine.starts[stream].kept


def test_an_answer_to_a_part_of_a_prompt_is_another_one_and_says_so() -> None:
    dense, sparse = Engine().run(request(sparse=None)), Engine().run(request())
    assert dense.tokens() != sparse.tokens()
    assert kept_of(dense) == ()
    assert dense.ends[1].kept_tokens == 0
    count = sum(end - start for start, end in kept_of(sparse))
    assert count == sparse.ends[1].kept_tokens == 148, "of 16 chunks 5, the last one of 20 tokens"
    assert sparse.ends[1].prompt_tokens == 500
    assert kept_of(sparse)[0][0] == 0
    assert kept_of(sparse)[-1][1] == 500
    gauges = sparse.engine.gauges()
    assert (gauges.sparse_prompts, gauges.sparse_kept_tokens, gauges.sparse_left_out_tokens) == (1, 148, 352)
    assert gauges.prefill_tokens == 148
    assert gauges.sparse_dense_prompts == 0


def test_with_all_kept_the_tokens_are_those_of_the_whole_prompt() -> None:
    dense, sparse = Engine().run(request(sparse=None)), Engine().run(request(sparse=replace(PART, keep=1.0)))
    assert sparse.tokens() == dense.tokens()
    assert kept_of(sparse) == ()
    assert not sparse.draft.calls


def test_a_prompt_of_which_all_is_kept_is_one_like_any_other() -> None:
    """It says nothing of tokens that were left out, and its rows are shared."""
    short = request(prompt=PROMPT[:90], sparse=SparsePrompt(0.3, forced_ranges(90)))
    engine = Engine().run(short, replace(short, stream=2, prompt=(*PROMPT[:90], 98)))
    engine.run(replace(short, stream=3))
    gauges = engine.engine.gauges()
    assert [engine.ends[stream].kept_tokens for stream in (1, 2, 3)] == [0, 0, 0]
    assert (gauges.sparse_prompts, gauges.sparse_kept_tokens, gauges.sparse_dense_prompts) == (0, 0, 0)
    assert engine.ends[3].cached_tokens > 0


@pytest.mark.parametrize("speculates", [False, True], ids=["undrafted", "drafted"])
@pytest.mark.parametrize("room", [{}, {"kv_tokens": CONTEXT, "reserved_rows": 8}], ids=["roomy", "preempting"])
def test_neighbours_drafts_and_preemption_change_nothing(room: dict[str, Any], speculates: bool) -> None:
    requests = [request(stream, PART if stream % 3 else None, tenant="ab"[stream % 2]) for stream in range(6)]
    if room:
        requests = [replace(each, prompt=PROMPT[:300], max_tokens=300) for each in requests]
        part = SparsePrompt(0.3, forced_ranges(300))
        requests = [each if each.sparse is None else replace(each, sparse=part) for each in requests]
    alone = [Engine().run(each).tokens(each.stream) for each in requests]
    together = Engine(speculates=speculates, **room).run(*requests)
    assert [together.tokens(each.stream) for each in requests] == alone
    assert together.engine.gauges().preemptions > 0 if room else True
    assert together.engine.gauges().draft_tokens > 0 if speculates else True


@pytest.mark.parametrize("given", [0, 1, 10], ids=str)
def test_a_replay_with_the_kept_ranges_repeats_the_answer_without_scoring(given: int) -> None:
    first = Engine().run(request())
    resumed = request(sparse=SparsePrompt(kept=kept_of(first)), resume=tuple(first.tokens()[:given]))
    again = Engine().run(resumed)
    assert first.tokens()[:given] + again.tokens() == first.tokens()
    assert not again.draft.calls
    assert kept_of(again) == kept_of(first)
    scored_again = Engine().run(request(resume=tuple(first.tokens()[:given])))
    assert scored_again.tokens() == again.tokens(), "the scores depend on the prompt alone"


def test_the_chunks_in_which_a_prompt_is_scored_change_nothing() -> None:
    alone = Engine().run(request())
    beside = Engine(step_tokens=20)
    beside.engine.submit(request(2, None, prompt=PROMPT[:40], max_tokens=200))
    beside.step()
    beside.run(request())
    assert beside.tokens() == alone.tokens()


def test_a_running_answer_goes_on_while_a_prompt_is_scored() -> None:
    engine = Engine()
    engine.engine.submit(request(2, None, prompt=PROMPT[:40], max_tokens=60))
    engine.step()
    engine.engine.submit(request())
    tokens = []
    while 1 not in engine.starts:
        calls = engine.draft.calls
        tokens.append(len(engine.step().tokens))
        assert engine.draft.calls - calls <= 9, "one chunk of the prompt, or eight tokens after it"
    assert len(tokens) > 8
    assert min(tokens) == 1


def test_a_running_answer_is_drafted_while_a_prompt_is_scored() -> None:
    """It would not be while a prompt is prefilled."""
    engine = Engine(speculates=True, beside_prompts=False, step_tokens=16)
    engine.engine.submit(request(1, None, prompt=PROMPT[:20]))
    while 1 not in engine.starts:
        engine.step()
    engine.step()
    engine.engine.submit(request(2))
    scored, drafts = 0, engine.engine.gauges().drafts
    while not engine.engine.gauges().sparse_prompts:
        engine.step()
        scored += 1
    assert engine.engine.gauges().drafts - drafts >= scored // 2 > 5
    engine.run()
    assert engine.tokens(1) == Engine().run(request(1, None, prompt=PROMPT[:20])).tokens(1)
    assert engine.tokens(2) == Engine().run(request(2)).tokens(2)


@pytest.mark.parametrize(
    ("prompt", "pays", "dense"), [(PROMPT[:90], 500, 0), (PROMPT[:400], 400, 1)], ids=["short", "dear"]
)
def test_a_prompt_that_is_not_scored_does_not_wait_for_the_scores_of_others(
    prompt: tuple[int, ...], pays: int, dense: int
) -> None:
    engine = Engine(pays=lambda tokens: tokens != pays or not dense)
    engine.engine.submit(request())
    engine.step()
    engine.engine.submit(request(2, replace(PART, forced=forced_ranges(len(prompt))), prompt=prompt))
    while 2 not in engine.starts:
        engine.step()
        assert 1 not in engine.starts
    assert engine.engine.gauges().sparse_dense_prompts == dense


def test_its_rows_are_never_those_of_another_sequence() -> None:
    engine = Engine()
    engine.run(request())
    assert engine.engine.gauges().retained_tokens == 0
    engine.run(request(2), request(3, None), request(4, None))
    assert engine.engine.gauges().prefix_hits == 1, "of the two whole prompts"
    assert engine.ends[2].cached_tokens == 0
    assert engine.starts[2].kept == kept_of(engine)
    engine.engine.submit(request(5, max_tokens=100))
    while 5 not in engine.starts:
        engine.step()
    assert engine.engine.read_rows(ReadRows(1, 1, 5, 0, 64)).held == 0


@pytest.mark.parametrize("steps", range(0, 15, 2))
def test_a_cancelled_request_leaves_nothing(steps: int) -> None:
    """In any phase: scored, prefilled, or decoded."""
    engine = Engine()
    engine.engine.submit(request())
    for _ in range(steps):
        engine.step()
    assert engine.engine.cancel(1) is not None
    assert engine.engine.gauges().slots_active == 0
    assert len(engine.drafter._free) == 3
    engine.run(request(2))
    assert engine.tokens(2) == Engine().run(request(2)).tokens(2)


def test_a_request_that_has_waited_too_long_ends_before_it_is_scored() -> None:
    engine = BatchEngine(runner(), max_queue=4, step_tokens=64, sparse=Engine().sparse, clock=iter(range(100)).__next__)
    engine.submit(request(queue_s=1.0))
    (failure,) = engine.step().failures + engine.step().failures
    assert failure.code is ErrorCode.QUEUE_TIMEOUT
    assert engine.idle


def test_sequences_of_one_prompt_and_tenant_are_scored_once() -> None:
    engine = Engine().run(request(1), request(2))
    calls = Engine().run(request(1)).draft.calls
    assert engine.draft.calls == calls
    assert kept_of(engine, 1) == kept_of(engine, 2)
    others = Engine().run(request(1), request(2, tenant="other"))
    assert others.draft.calls == 2 * calls, "a tenant does not see by the time what another one has sent"


def test_a_prompt_whose_scores_cost_too_much_is_computed_whole_and_says_so() -> None:
    engine = Engine(pays=lambda tokens: tokens < 500).run(request())
    assert engine.tokens() == Engine().run(request(sparse=None)).tokens()
    assert kept_of(engine) == ()
    assert engine.engine.gauges().sparse_dense_prompts == 1
    assert not engine.draft.calls


@pytest.mark.parametrize(("context", "kept"), [(506, False), (507, True)])
def test_a_prompt_that_the_draft_model_cannot_compute_is_computed_whole(context: int, kept: bool) -> None:
    engine = Engine(draft=runner(context=context)).run(request())
    assert bool(kept_of(engine)) == kept


class Breaking(ScriptedRunner):
    """Fails in the prefill call of a number."""

    def __init__(self, last: int) -> None:
        super().__init__(slots=3, context=CONTEXT, prefill_chunks=(16, 64), decode_rows=12, sparse=True)
        self._left = last

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("the device is lost")
        tokens = super().prefill(chunks, specs)
        return [None] * len(tokens) if self._left < 0 else tokens


@pytest.mark.parametrize("last", [1, 4, 9])
def test_an_error_of_the_draft_model_ends_no_request(last: int) -> None:
    """Neither an exception nor logits that are not finite: the prompt is computed whole."""
    engine = Engine(draft=Breaking(last)).run(request(1), request(2, prompt=PROMPT[:499]))
    assert engine.tokens(1) == Engine().run(request(1, sparse=None)).tokens(1)
    assert kept_of(engine, 1) == () == kept_of(engine, 2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt_logprobs": True}, ErrorCode.UNSUPPORTED),
        ({"max_tokens": 0}, ErrorCode.UNSUPPORTED),
        ({"sparse": SparsePrompt(kept=((0, 501),))}, ErrorCode.INVALID),
        ({"sparse": SparsePrompt(kept=((0, 32),))}, ErrorCode.INVALID),
    ],
    ids=["logprobs", "no answer", "beyond the prompt", "without its end"],
)
def test_what_needs_the_whole_prompt_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    with pytest.raises(RequestRefused) as refused:
        Engine().engine.submit(request(**fields))
    assert (refused.value.code, refused.value.field) == (code, "sparse_prefill")


def test_a_model_with_a_recurrent_state_takes_no_part_of_a_prompt() -> None:
    """Its snapshots are found by the tokens of a prompt, and would be those of a part."""
    engine = BatchEngine(runner(state_bytes=STATE_BYTES), max_queue=4, step_tokens=64)
    with pytest.raises(RequestRefused, match="recurrent state") as refused:
        engine.submit(request(sparse=SparsePrompt(kept=((0, 32), (400, 500)))))
    assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, "sparse_prefill")
    assert engine.idle


class Unclear(ScriptedRunner):
    """Cannot clear a slot so often."""

    left = 0

    def reset(self, slot: int) -> None:
        if self.left:
            self.left -= 1
            raise RuntimeError("the device is lost")
        super().reset(slot)


def test_a_slot_that_cannot_be_cleared_is_not_lost() -> None:
    draft = Unclear(slots=3, context=CONTEXT, prefill_chunks=(16, 64), decode_rows=12, sparse=True)
    drafter = DraftModel(draft)
    lent = [drafter.lend_slot() for _ in range(3)]
    for each in lent:
        draft.left = 1
        with pytest.raises(RuntimeError):
            drafter.take_back(each)
    draft.left = 1
    with pytest.raises(RuntimeError):
        drafter.lend_slot()
    assert sorted(drafter.lend_slot() for _ in range(3)) == [0, 1, 2]


def test_an_engine_without_a_draft_model_refuses_it_and_replays_it() -> None:
    engine = BatchEngine(runner(), max_queue=4, step_tokens=64)
    with pytest.raises(RequestRefused, match="nothing scores prompts"):
        engine.submit(request())
    engine.submit(request(sparse=SparsePrompt(kept=((0, 32), (400, 500)))))
    assert [token.token for _ in range(40) for token in engine.step().tokens]
