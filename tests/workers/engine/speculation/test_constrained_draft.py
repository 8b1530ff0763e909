"""Drafts of answers with a grammar: what it forces, and what followed in earlier answers."""

import itertools
import json
import random
from dataclasses import replace
from functools import cache

import pytest

from protocol.request import Grammar, Sampling
from tests.workers.engine.harness.drafting import always
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.speculation import answer_patterns
from workers.engine.speculation.answer_patterns import (
    MAX_CONTEXTS,
    MAX_LEARNED,
    MAX_TABLES,
    AnswerPatterns,
    PatternTables,
)
from workers.engine.speculation.lookup_drafters import LookupDrafters
from workers.engine.speculation.speculator import Speculator
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.example import example_of
from workers.grammar.matcher import GrammarMatcher
from workers.grammar.vocabulary import tokenizer_vocabulary
from workers.scripted.runner import ScriptedRunner
from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer

VOCAB = 512
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["anna", "ben"]}, "count": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "count", "city"],
    "additionalProperties": False,
}


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: tokenizer_vocabulary(ByteTokenizer(), VOCAB))


@pytest.fixture(scope="module", autouse=True)
def closed() -> object:
    yield
    compiler().close()


def constraint() -> GrammarMatcher:
    return compiler().matcher(Grammar("json_schema", json.dumps(SCHEMA), "response_format"))


def runner() -> ScriptedRunner:
    return ScriptedRunner(
        vocab_size=VOCAB, alphabet=(*b'ab1 "}', EOS_ID), slots=2, context=256, prefill_chunks=(16,), decode_rows=12
    )


def ask(stream: int, tenant: str = "one") -> EngineRequest:
    sampling = Sampling(temperature=1.0, seed=stream)
    return EngineRequest(
        stream,
        (5, 6, 7),
        sampling,
        60,
        frozenset({EOS_ID}),
        tenant=tenant,
        constraint=constraint(),
        grammar="people",
    )


def answer(request: EngineRequest, speculator: Speculator | None) -> tuple[list[int], int, int]:
    """Return the tokens of an answer, the steps that it took, and the drafted tokens that were accepted."""
    times = itertools.count()
    device = runner()
    engine = BatchEngine(device, max_queue=9, step_tokens=64, speculator=speculator, clock=lambda: next(times) / 1000)
    engine.submit(request)
    tokens: list[int] = []
    while not engine.idle:
        tokens += [token.token for token in engine.step().tokens]
    assert not device.violations
    gauges = engine.gauges()
    return tokens, gauges.decode_steps, gauges.accepted_tokens


def test_answers_are_the_same_and_those_of_a_known_grammar_take_fewer_steps() -> None:
    capabilities = runner().capabilities
    kept = always(capabilities)
    first = later = 0
    for stream in range(8):
        plain, _, _ = answer(ask(stream), None)
        again, steps, accepted = answer(ask(stream), kept)
        assert again == plain
        assert accepted > 0
        _, alone, _ = answer(ask(stream), always(capabilities))
        if stream:
            first, later = first + alone, later + steps
    assert later < 0.9 * first


def test_the_first_answer_is_drafted_by_an_example() -> None:
    example = tuple(example_of(SCHEMA).encode())
    capabilities = runner().capabilities
    alone = drafted = 0
    for stream in range(6):
        plain, without, _ = answer(ask(stream), always(capabilities))
        again, steps, _ = answer(replace(ask(stream), example=example), always(capabilities))
        assert again == plain
        alone, drafted = alone + without, drafted + steps
    assert drafted < 0.95 * alone


def test_another_tenant_learns_nothing_of_an_answer() -> None:
    made = LookupDrafters()
    answer(ask(1, "one"), always(runner().capabilities, made))
    assert len(made._patterns.of("one", "people")) > 10
    assert len(made._patterns.of("two", "people")) == 0
    assert len(made._patterns.of("one", "cities")) == 0


def test_a_table_is_kept_for_a_tenant_and_a_grammar() -> None:
    tables = PatternTables()
    first = tables.of("one", "a")
    assert tables.of("one", "a") is first
    assert tables.of("two", "a") is not first
    assert tables.of("one", "b") is not first
    assert tables.of("one", "") is not tables.of("one", "")
    tables.of("one", "a")
    for number in range(MAX_TABLES - 1):
        tables.of("many", str(number))
    assert tables.of("one", "a") is first, "the last ones that were used"
    for number in range(MAX_TABLES):
        tables.of("more", str(number))
    assert tables.of("one", "a") is not first


def test_what_follows_most_often_is_guessed() -> None:
    patterns = AnswerPatterns()
    answers = [[1, 2, 3, token, 5] for token in (4, 4, 9, 4)]
    for tokens in answers:
        patterns.learn(tokens, 0, 0)
    assert patterns.guess([1, 2, 3]).token == 4  # type: ignore[union-attr]
    sure, unsure = patterns.guess([1, 2]), patterns.guess([2, 3])
    assert sure is not None
    assert unsure is not None
    assert sure.certainty > unsure.certainty > 0.4
    assert patterns.guess([7]) is None
    for _ in range(4):
        patterns.learn([1, 2, 3, 8, 5], 0, 0)
    assert patterns.guess([1, 2, 3]).token == 8  # type: ignore[union-attr]


def test_prompts_are_not_learned() -> None:
    patterns = AnswerPatterns()
    patterns.learn([1, 2, 3, 4, 5], 0, 3)
    assert patterns.guess([1, 2]) is None
    assert patterns.guess([4]).token == 5  # type: ignore[union-attr]


def test_of_a_long_resumed_answer_only_the_end_is_learned() -> None:
    """All of it would hold the engine's thread for too long."""
    patterns, last = AnswerPatterns(), 4 * MAX_LEARNED
    patterns.learn(range(last + 1), 0, 0)
    first = last - MAX_LEARNED + 1
    assert patterns.guess([last - 1]).token == last  # type: ignore[union-attr]
    assert patterns.guess([first - 1]).token == first  # type: ignore[union-attr]
    assert patterns.guess([first - 2]) is None


def test_a_table_is_bounded_and_keeps_what_was_seen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_patterns, "MAX_CONTEXTS", 64)
    patterns, randomness = AnswerPatterns(), random.Random(1)
    for _ in range(2):
        patterns.learn([1, 2, 3, 4, 5], 0, 0)
    patterns.learn([randomness.randrange(1000, 1 << 30) for _ in range(500)], 0, 0)
    assert len(patterns) <= 2 * 64
    assert patterns.guess([1, 2, 3, 4]).token == 5  # type: ignore[union-attr]
    assert MAX_CONTEXTS > 64


def test_only_a_constrained_answer_has_a_table() -> None:
    made, device = LookupDrafters(), runner()
    engine = BatchEngine(device, max_queue=9, step_tokens=64, speculator=Speculator(device.capabilities, made))
    engine.submit(replace(ask(1), constraint=None))
    while not engine.idle:
        engine.step()
    assert not made._patterns._tables
