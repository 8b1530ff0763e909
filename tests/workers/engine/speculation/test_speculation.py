"""With drafts and without, sequences have the same tokens, log-probabilities, ends and counts."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from protocol.events import Gauges
from protocol.request import Bias, Sampling
from tests.gate import SAMPLINGS
from tests.grammar_matchers import matcher_of
from tests.workers.engine.harness.drafting import always, known
from tests.workers.engine.harness.undrafted import Undrafted
from workers.engine.edits.dry import Breakers
from workers.engine.embeddings.prompt_embeddings import PromptEmbeddings
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import Constraint, EngineRequest
from workers.engine.runner import RunnerCapabilities
from workers.engine.speculation.speculator import Speculator
from workers.engine.step_result import SequenceEnd, SequenceFailure, Token
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault
from workers.sampling.sample_spec import LogitEdits, SampleSpec
from workers.scripted.runner import STATE_BYTES, ScriptedRunner

VOCAB = 512
CONTEXT = 96


def runner(alphabet: Sequence[int] = (97, 98), **options: Any) -> ScriptedRunner:
    fields: dict[str, Any] = {"slots": 4, "context": CONTEXT, "prefill_chunks": (4, 16), "decode_rows": 12}
    return ScriptedRunner(vocab_size=VOCAB, alphabet=alphabet, **(fields | options))


class Outcome:
    """Tokens and ends of some requests."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[Token]] = {}
        self.ends: dict[int, SequenceEnd] = {}
        self.failures: dict[int, SequenceFailure] = {}
        self.gauges = Gauges()

    def of(self, stream: int) -> tuple[Any, ...]:
        end = self.ends.get(stream)
        seen = None if end is None else (end.reason, end.prompt_tokens, end.completion_tokens)
        return self.tokens.get(stream), seen, self.failures.get(stream)


def run(device: ScriptedRunner, requests: list[EngineRequest], speculator: Speculator | None, **room: Any) -> Outcome:
    times = itertools.count()
    engine = BatchEngine(
        with_faults(device, room.pop("faults", ())),
        max_queue=99,
        step_tokens=64,
        speculator=speculator,
        clock=lambda: next(times) / 1000,
        **room,
    )
    outcome = Outcome()
    for request in requests:
        engine.submit(request)
    while not engine.idle:
        result = engine.step()
        for token in result.tokens:
            outcome.tokens.setdefault(token.stream, []).append(token)
        for end in result.ends:
            assert end.stream not in outcome.ends
            outcome.ends[end.stream] = end
        for failure in result.failures:
            outcome.failures[failure.stream] = failure
    gauges = engine.gauges()
    assert (gauges.slots_active, gauges.kv_tokens) == (0, 0)
    assert gauges.decode_tokens == sum(map(len, outcome.tokens.values()))
    outcome.gauges = gauges
    assert not device.violations, device.violations
    return outcome


def some(randomness: random.Random, stream: int) -> EngineRequest:
    """A random request whose answer often repeats itself."""
    sampling = randomness.choice(SAMPLINGS)
    if randomness.random() < 0.3:
        sampling = Sampling(logprobs=2, temperature=0.8, seed=stream, logit_bias=(Bias(97, 2.0),))
    prompt = tuple(randomness.choice((97, 98)) for _ in range(randomness.randint(1, 40)))
    most = randomness.choice((None, randomness.randint(1, 60)))
    resume = tuple(randomness.choice((97, 98)) for _ in range(randomness.randint(1, min(5, most or 5))))
    resumes = randomness.randrange(5)
    return EngineRequest(
        stream,
        prompt,
        sampling,
        most,
        eos=frozenset({98}) if resumes == 0 else frozenset(),
        resume=resume if resumes == 1 else (),
        bad_sequences=((97, 97, 98), (98, 98, 98)) if randomness.random() < 0.2 else (),
        breakers=Breakers(bytes(97) + b"\1"),
        min_tokens=min(most or 9, 9) if randomness.random() < 0.2 else 0,
    )


def with_grammar(request: EngineRequest) -> EngineRequest:
    """A new constraint: each run has its own."""
    if request.stream % 3 or request.resume or request.bad_sequences:
        return request
    return replace(request, constraint=matcher_of(request.stream // 3, VOCAB), eos=frozenset({VOCAB - 1}))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("room", [{}, {"kv_tokens": CONTEXT, "reserved_rows": 2}], ids=["roomy", "preempting"])
def test_drafts_change_nothing(seed: int, room: dict[str, Any]) -> None:
    randomness = random.Random(seed)
    requests = [some(randomness, stream) for stream in range(12)]
    plain = run(runner(), [with_grammar(each) for each in requests], None, **room)
    device = runner()
    speculator = always(device.capabilities, beside_prompts=True)
    drafted = run(device, [with_grammar(each) for each in requests], speculator, **room)
    assert drafted.gauges.accepted_tokens > 10
    assert drafted.gauges.draft_tokens > drafted.gauges.accepted_tokens
    for request in requests:
        assert drafted.of(request.stream) == plain.of(request.stream), request


def test_a_prompt_with_rows_of_embeddings_is_drafted_for() -> None:
    """The rows are not."""
    rows = PromptEmbeddings(np.ones((2, 8), np.float32))
    request = EngineRequest(1, (97, 98, *rows.ids, 97, 98), max_tokens=60, embeddings=rows)
    plain = run(runner(embedding_width=8), [request], None)
    device = runner(embedding_width=8)
    with capture_logs() as logs:
        drafted = run(device, [request], always(device.capabilities))
    assert not logs
    assert drafted.of(1) == plain.of(1)
    assert drafted.gauges.accepted_tokens > 10


def test_a_repetition_takes_fewer_steps() -> None:
    request = EngineRequest(1, (97, 98) * 8, max_tokens=60)
    device = runner(alphabet=(97,))
    outcome = run(device, [request], always(device.capabilities))
    assert [token.token for token in outcome.tokens[1]] == [97] * 60
    assert outcome.gauges.decode_steps < 10
    assert outcome.gauges.accepted_tokens > 45
    device = runner(alphabet=(97,))
    assert run(device, [replace(request, speculate=False)], always(device.capabilities)).gauges.decode_steps == 59


def test_answers_to_rows_of_embeddings_are_drafted_without_them() -> None:
    rows = PromptEmbeddings(np.arange(12, dtype=np.float32).reshape(3, 4))
    prompt = (97, 97, rows.ids[0], *rows.ids, 97, 97)
    request = EngineRequest(1, prompt, max_tokens=40, embeddings=rows)
    plain = run(runner((97,), embedding_width=4), [request], None)
    device = runner((97,), embedding_width=4)
    drafted = run(device, [request], always(device.capabilities))
    assert drafted.of(1) == plain.of(1)
    assert drafted.gauges.accepted_tokens > 10


def test_costs_and_rates_decide_by_themselves() -> None:
    """By the clock of the engine, steps of any number of rows take the same time."""
    device = runner(alphabet=(97,))
    request = EngineRequest(1, (97, 98) * 8, max_tokens=60)
    outcome = run(device, [request], Speculator(device.capabilities, clock=lambda: 0.0))
    assert outcome.gauges.accepted_tokens > 30
    device = runner(alphabet=tuple(range(97, 123)))
    outcome = run(device, [request], Speculator(device.capabilities, clock=lambda: 0.0))
    assert outcome.gauges.draft_tokens < 2 * outcome.gauges.decode_steps, "though rows cost nothing"


class CountingCalls:
    """Has no draft."""

    calls = 0

    def draft(self, most: int) -> Sequence[int]:
        self.calls += 1
        return ()


def test_steps_pay_for_look_ups_in_vain() -> None:
    """A look-up takes as long as a step: its clock goes on by a second with each call, as that of the engine does."""
    drafter, times = CountingCalls(), itertools.count()
    device = runner()
    speculator = Speculator(device.capabilities, lambda _: [drafter], clock=lambda: next(times) / 1000)
    run(device, [EngineRequest(1, (97, 98), max_tokens=80)], speculator)
    assert drafter.calls < 3
    free = Speculator(device.capabilities, lambda _: [drafter], clock=lambda: 0.0)
    run(runner(), [EngineRequest(1, (97, 98), max_tokens=80)], free)
    assert drafter.calls > 60


def test_a_full_batch_is_looked_at_now_and_then() -> None:
    """Rows for a draft become free when one of two sequences ends."""
    device = runner(alphabet=(97,), slots=2, decode_rows=2)
    requests = [EngineRequest(1, (97, 98) * 4, max_tokens=20), EngineRequest(2, (97, 98) * 4, max_tokens=60)]
    outcome = run(device, requests, always(device.capabilities))
    assert outcome.gauges.accepted_tokens > 10
    assert [len(outcome.tokens[stream]) for stream in (1, 2)] == [20, 60]


def test_a_full_batch_is_drafted_for_once_more_rows_fit() -> None:
    """The runner has four rows for four sequences, until it has a graph for eight."""
    device = runner(alphabet=(97,), slots=4, decode_rows=4, draft_rows=8)
    requests = [EngineRequest(stream, (97, 98) * 4, max_tokens=40) for stream in range(4)]
    asked: list[int] = []

    def fits(rows: int) -> bool:
        asked.append(rows)
        return len(asked) > 5

    outcome = run(device, requests, always(device.capabilities, fits=fits))
    assert {8} == {*asked[:6]}
    assert outcome.gauges.accepted_tokens > 60
    assert outcome.gauges.decode_steps < 39
    assert all([token.token for token in each] == [97] * 40 for each in outcome.tokens.values())
    outcome = run(runner(alphabet=(97,), slots=4, decode_rows=4), requests, always(device.capabilities))
    assert outcome.gauges.draft_tokens == 0


@pytest.mark.parametrize(("state", "longest"), [({}, 8), ({"state_bytes": STATE_BYTES, "rollback_rows": 3}, 3)])
def test_one_sequence_may_have_all_rows_that_fit(state: dict[str, int], longest: int) -> None:
    """A recurrent state bounds them to what can be taken back."""
    device = runner(alphabet=(97,), slots=4, decode_rows=4, draft_rows=8, **state)
    rows: list[int] = []

    def fits(wanted: int) -> bool:
        rows.append(wanted)
        return True

    speculator = always(device.capabilities, known((97,) * 40), fits=fits)
    outcome = run(device, [EngineRequest(1, (97, 98), max_tokens=40)], speculator)
    assert outcome.gauges.decode_steps == -(-39 // longest)
    assert set(rows) <= {longest, 39 % longest}
    assert len(outcome.tokens[1]) == 40


def test_nothing_is_drafted_while_prompts_wait() -> None:
    device = runner(alphabet=(97,), slots=1, decode_rows=9)
    requests = [EngineRequest(stream, (97, 98, 97), max_tokens=30) for stream in (1, 2)]
    outcome = run(device, requests, always(device.capabilities))
    ends = outcome.ends
    assert ends[1].decode_s > 2 * ends[2].decode_s, "only the last one is drafted for"


@pytest.mark.parametrize("most", range(1, 6))
def test_a_draft_ends_before_the_last_token(most: int) -> None:
    """The scripted runner refuses rows beyond the context; rows beyond `max_tokens` would be in vain."""
    device = runner(alphabet=(97,), slots=1, context=12)
    outcome = run(device, [EngineRequest(1, (97,) * 7, max_tokens=most)], always(device.capabilities))
    assert len(outcome.tokens[1]) == most
    assert outcome.gauges.draft_tokens <= max(0, most - 2)


def test_a_token_that_ends_the_answer_is_not_a_row() -> None:
    request = EngineRequest(1, (98, 97), max_tokens=30, eos=frozenset({98}))
    plain = run(runner(alphabet=(97,) * 6 + (98,)), [request], None)
    answer = [token.token for token in plain.tokens[1]]
    assert answer[-1] == 98
    assert len(answer) > 2
    device = runner(alphabet=(97,) * 6 + (98,))
    drafted = run(device, [request], always(device.capabilities, known([*answer, 97, 97, 97])))
    assert drafted.of(1) == plain.of(1)
    assert drafted.gauges.draft_tokens == len(answer) - 2, "neither the first token nor the last one"


class Corrupting(ScriptedRunner):
    """Its rows of the token 99, and those after, have logits that are not finite."""

    def decode(self, rows: Sequence[Any]) -> list[int | None]:
        bad = {row.slot: row.start for row in reversed(rows) if row.token == 99}
        value = np.ones(1, np.float32)
        nan = LogitEdits(np.zeros(1, np.int32), np.nan * value, value, value, 0.0 * value)
        return super().decode(
            [
                structs.replace(row, sample=SampleSpec(row.sample.sampling, row.sample.position, nan))
                if row.slot in bad and row.start >= bad[row.slot]
                else row
                for row in rows
            ]
        )


def test_a_draft_with_logits_that_are_not_finite_is_taken_back() -> None:
    request = EngineRequest(1, (97, 98), max_tokens=20)
    plain = run(runner(), [request], None)
    device = Corrupting(
        vocab_size=VOCAB, alphabet=(97, 98), slots=2, context=CONTEXT, prefill_chunks=(4,), decode_rows=9
    )
    answer = [token.token for token in plain.tokens[1]]
    wrong = [*answer[:5], 99, *answer[6:]]
    drafted = run(device, [request], always(device.capabilities, known(wrong)))
    assert drafted.of(1) == plain.of(1)
    assert drafted.gauges.drafts == 1, "nothing is drafted after it"
    assert drafted.gauges.steps_failed == 0


def test_a_step_with_drafts_that_raises_ends_its_sequences() -> None:
    device = runner(alphabet=(97,))
    request = EngineRequest(1, (97, 98) * 3, max_tokens=40)
    outcome = run(device, [request], always(device.capabilities), faults=[Fault("raise", call=4)])
    assert outcome.gauges.drafts > 0
    assert list(outcome.failures) == [1]
    got = [token.token for token in outcome.tokens[1]]
    assert got == [97] * len(got)


def test_a_step_with_drafts_and_logits_that_are_not_finite_is_repeated_without() -> None:
    device = runner(alphabet=(97,))
    request = EngineRequest(1, (97, 98) * 3, max_tokens=40)
    outcome = run(device, [request], always(device.capabilities), faults=[Fault("nan", call=4)])
    assert not outcome.failures
    assert [token.token for token in outcome.tokens[1]] == [97] * 40
    assert outcome.gauges.decode_steps > 15, "and nothing is drafted afterwards"


def test_a_drafter_that_raises_is_not_asked_again() -> None:
    class Broken:
        def draft(self, most: int) -> Sequence[int]:
            raise KeyError("a bug")

    device = runner()
    request = EngineRequest(1, (97, 98), max_tokens=20)
    outcome = run(device, [request], always(device.capabilities, lambda _: [Broken()]))
    assert outcome.of(1) == run(runner(), [request], None).of(1)


class Odd(Undrafted):
    """A constraint without copies."""

    ended: bool | None = None

    def accept(self, token: int) -> None:
        """Has no effect."""

    def mask(self) -> None:
        """Allow all."""


def test_a_constraint_that_cannot_be_copied_has_no_drafts() -> None:
    device = runner(alphabet=(97,))
    constraint: Constraint = Odd()
    outcome = run(
        device, [EngineRequest(1, (97, 98) * 4, max_tokens=20, constraint=constraint)], always(device.capabilities)
    )
    assert outcome.gauges.draft_tokens == 0
    assert len(outcome.tokens[1]) == 20


def test_the_tokens_that_a_grammar_forces_are_drafted() -> None:
    """The third grammar is a choice of three texts, of which the first token decides."""
    request = EngineRequest(1, (97,), max_tokens=60, eos=frozenset({VOCAB - 1}))
    plain = run(runner(), [replace(request, constraint=matcher_of(2, VOCAB))], None)
    device = runner()
    drafted = run(device, [replace(request, constraint=matcher_of(2, VOCAB))], always(device.capabilities))
    assert drafted.of(1) == plain.of(1)
    assert drafted.gauges.accepted_tokens >= len(plain.tokens[1]) // 2
    assert drafted.gauges.decode_steps < plain.gauges.decode_steps


def test_a_draft_that_the_grammar_forbids_is_no_row() -> None:
    request = EngineRequest(1, (97,), max_tokens=30, eos=frozenset({VOCAB - 1}))
    device = runner()
    speculator = always(device.capabilities, known([97] * 60))
    drafted = run(device, [replace(request, constraint=matcher_of(2, VOCAB))], speculator)
    assert drafted.of(1) == run(runner(), [replace(request, constraint=matcher_of(2, VOCAB))], None).of(1)
    assert drafted.gauges.draft_tokens < 5


def test_rows_that_are_not_exact_are_refused() -> None:
    with pytest.raises(ValueError, match="decode_rows"):
        Speculator(RunnerCapabilities("mlx", "gpu", "float16", 4, 64, 100, (4,)))


def test_rows_of_a_draft_are_retained_as_far_as_they_were_accepted() -> None:
    """A second request that goes on after the answer of the first one reads them."""
    device, times = runner(alphabet=(97, 98)), itertools.count()
    engine = BatchEngine(
        device,
        max_queue=9,
        step_tokens=64,
        prefixes=PrefixPolicy(min_tokens=1),
        speculator=always(device.capabilities),
        clock=lambda: next(times) / 1000,
    )
    prompt = (97, 98) * 5

    def complete(stream: int, prompt: tuple[int, ...], most: int) -> list[int]:
        engine.submit(EngineRequest(stream, prompt, max_tokens=most))
        out: list[int] = []
        while not engine.idle:
            out += [token.token for token in engine.step().tokens]
        return out

    first = complete(1, prompt, 30)
    rest = complete(2, (*prompt, *first), 20)
    assert engine.gauges().prefix_tokens == len(prompt) + len(first) - 1
    assert engine.gauges().accepted_tokens > 5
    alone = run(runner(alphabet=(97, 98)), [EngineRequest(3, prompt, max_tokens=50)], None)
    assert first + rest == [token.token for token in alone.tokens[3]]
    assert not device.violations
