"""Random combinations of tools, grammars, reasoning, stops and sampling: exact after any resumption, and never refused
by the gateway."""

import functools
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pytest
from msgspec.structs import replace

from actors.supervision.asked_sequence import AskedSequence
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Event, Failed, Segment, TextSegment
from protocol.request import ChatInput, FinishReason, Grammar, Limits, Message, Sampling, ToolChoice
from tests.workers.output_formats.marked_tokenizer import MarkedTokenizer
from tests.workers.output_formats.parsed import Call, joined
from tests.workers.process.output_processor.stepped_worker import Worker
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.vocabulary import tokenizer_vocabulary
from workers.output_formats.formats.choice import choose_formats
from workers.process.output_processor import OutputProcessor
from workers.text.byte_tokenizer import EOS_ID, ByteChatFormat

THINK = ("<think>", "</think>")
CALL = ("<tool_call>", "</tool_call>")
HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|return|>", "<|call|>")
KINDS = {
    "hermes": ("think", "hermes", (*THINK, *CALL), ("", "<think>\n")),
    "plain": ("think", "hermes", (), ("", "<think>\n")),
    "qwen3_coder": ("think", "qwen3_coder", (*THINK, *CALL), ("", "<think>\n")),
    "harmony": ("harmony", "harmony", HARMONY, ("<|start|>assistant",)),
}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'


class _Chat(ByteChatFormat):
    takes_tools = True

    def __init__(self, ending: str) -> None:
        self._ending = ending

    def render(self, *given: Any, **options: Any) -> str:
        return super().render(*given, **options) + self._ending


class _Tokenizer(MarkedTokenizer):
    """Its markers have names, as grammars need."""

    def __init__(self, markers: tuple[str, ...], ending: str) -> None:
        super().__init__(markers)
        self.chat = _Chat(ending)
        self.eos_ids = frozenset(
            {EOS_ID, *(self.added_tokens.get(each, EOS_ID) for each in ("<|return|>", "<|call|>"))}
        )

    def label(self, token: int) -> bytes:
        return self._texts[token].encode() if token in self._texts else super().label(token)


class _Answer(NamedTuple):
    """The answer to a request, in the pieces in which it came."""

    tokens: tuple[int, ...]
    pieces: tuple[tuple[int, tuple[Segment, ...]], ...]
    """The number of tokens so far, and the output that came with the last ones."""
    reason: FinishReason
    reasoning_tokens: int

    def joined(self, first: "tuple[tuple[int, tuple[Segment, ...]], ...]" = ()) -> Any:
        """The output as a client puts it together, after the first pieces."""
        return joined(segment for _, piece in (*first, *self.pieces) for segment in piece)


class Model:
    """A model of one kind, whose next token is a hash of its history."""

    def __init__(self, kind: str, ending: str = "") -> None:
        reasoning, tools, markers, _ = KINDS[kind]
        self.tokenizer = _Tokenizer(markers, ending)
        self.formats = choose_formats(reasoning, tools)
        size = self.tokenizer.vocab_size
        self.compiler = GrammarCompiler(functools.partial(tokenizer_vocabulary, self.tokenizer, size))
        self.drafted = self.accepted = 0
        """Tokens of all answers."""
        self._alphabet = (*b'ab1 "}x\n', EOS_ID, *self.tokenizer.added_tokens.values())

    def answer(
        self, submit: Submit, seen: list[Event] | None = None, drafted: Sequence[int] | None = None
    ) -> _Answer | Failed:
        """Answer a request as a worker does, under the eyes of the gateway. The frames are added to `seen`; the gateway
        does not see those with log-probabilities of the prompt. `drafted` tokens are those of the whole answer."""
        tokenizer = self.tokenizer
        worker = Worker(
            tokenizer,
            vocab_size=tokenizer.vocab_size,
            alphabet=self._alphabet,
            slots=1,
            drafts=drafted is not None,
            drafted=drafted,
        )
        worker.processor = OutputProcessor(
            tokenizer,
            max_live=1,
            clock=lambda: 0.0,
            grammars=self.compiler,
            formats=self.formats,
            vocab_size=tokenizer.vocab_size,
        )
        worker.submit(submit)
        worker.run()
        assert not worker.runner.violations
        if seen is not None:
            seen += worker.frames
        asked = AskedSequence(replace(submit, prompt_logprobs=None), 4096)
        if failed := [frame for frame in worker.frames if isinstance(frame, Failed)]:
            asked.fail(failed[0])
            return failed[0]
        deltas, finished = worker.deltas(submit.stream), worker.finished(submit.stream)
        for delta in deltas:
            asked.take(delta)
        asked.finish(finished, cancelled=False)
        gauges, reasoning = worker.engine.gauges(), finished.usage.reasoning_tokens
        self.drafted, self.accepted = self.drafted + gauges.draft_tokens, self.accepted + gauges.accepted_tokens
        tokens = submit.resume + tuple(token for delta in deltas for token in delta.tokens)
        pieces: list[tuple[int, tuple[Segment, ...]]] = [(len(submit.resume), ())]
        for delta in deltas:
            pieces.append((pieces[-1][0] + len(delta.tokens), _segments(delta)))
        return _Answer(tokens, (*pieces[1:], (len(tokens) + 1, _segments(finished))), finished.reason, reasoning)


def _segments(event: Any) -> tuple[Segment, ...]:
    return event.segments or ((TextSegment(event.text),) if event.text else ())


def _request(randomness: random.Random) -> Submit:
    def maybe(chance: float, value: Any, other: Any) -> Any:
        return value if randomness.random() < chance else other

    strict = maybe(0.3, {"strict": True}, {})
    functions = [{"name": name, "parameters": PARAMETERS} | strict for name in ("f", "go")]
    tools = json.dumps([{"type": "function", "function": each} for each in functions])
    modes: tuple[Literal["auto", "required", "none"], ...] = ("auto", "auto", "required", "none")
    mode = randomness.choice(modes)
    source = ChatInput(
        (Message("user", "hi"),),
        tools_json=maybe(0.8, tools, ""),
        tool_choice=ToolChoice(mode, maybe(0.4, "go", "") if mode == "required" else "", maybe(0.6, True, False)),
        parse_tools=maybe(0.9, True, False),
        parse_reasoning=maybe(0.8, True, False),
    )
    grammar = randomness.choice(
        (
            Grammar("json_schema", SCHEMA, "response_format"),
            Grammar("regex", "[ab]{3,9}1", "guided_regex"),
            Grammar("choice", '["abba","baab"]', "guided_choice"),
        )
    )
    sampling = Sampling(
        temperature=1.0,
        seed=randomness.randrange(1 << 20),
        bad_words=maybe(0.2, randomness.choice((("ab",), ("</think>",), ("}",))), ()),
        presence_penalty=maybe(0.2, 1.0, 0.0),
        logprobs=maybe(0.2, 2, None),
    )
    limits = Limits(
        max_tokens=randomness.choice((20, 60, 150)),
        min_tokens=maybe(0.2, 12, 0),
        stop=maybe(0.2, randomness.choice((("b1",), ("}",))), ()),
        stop_ids=maybe(0.2, randomness.choice(((ord("}"),), (ord("1"),), (300,), (301,))), ()),
        keep_stop=maybe(0.3, True, False),
        ignore_eos=maybe(0.2, True, False),
        reasoning_tokens=maybe(0.3, randomness.choice((0, 3, 10)), None),
    )
    return Submit(1, "request", source, sampling, limits, grammar=maybe(0.4, grammar, None))


@pytest.fixture(scope="module", params=[(kind, ending) for kind, each in KINDS.items() for ending in each[3]])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    made = Model(*request.param)
    yield made
    made.compiler.close()


@pytest.mark.parametrize("seed", range(100))
def test_an_answer_is_the_same_from_any_token_on(model: Model, seed: int) -> None:
    randomness = random.Random(seed)
    submit = _request(randomness)
    whole = model.answer(submit)
    if isinstance(whole, Failed):
        return
    ends = [0, *(end for end, _ in whole.pieces[:-1])]
    for at in {*randomness.sample(ends, min(4, len(ends))), ends[-1]}:
        resume = whole.tokens[:at]
        again = Submit(1, "request", submit.input, submit.sampling, submit.limits, resume, grammar=submit.grammar)
        resumed = model.answer(again)
        assert not isinstance(resumed, Failed), resumed
        assert (resumed.tokens, resumed.reason) == (whole.tokens, whole.reason)
        assert resumed.reasoning_tokens == whole.reasoning_tokens
        delivered = tuple(piece for piece in whole.pieces if piece[0] <= at)
        assert resumed.joined(delivered) == whole.joined()


def test_drafts_change_nothing(model: Model) -> None:
    """Also where reasoning, its limit, a call or the answer ends within a draft, whose tokens are wrong at times."""
    made = 0
    for seed in range(20):
        randomness = random.Random(seed)
        submit = _request(randomness)
        whole = model.answer(submit)
        if isinstance(whole, Failed):
            continue
        wrong = randomness.choice((0.0, 0.1, 0.3))
        draft = [randomness.choice(whole.tokens) if randomness.random() < wrong else token for token in whole.tokens]
        before = model.accepted
        again = model.answer(submit, drafted=draft)
        made += model.accepted > before
        assert not isinstance(again, Failed), again
        assert (again.tokens, again.reason) == (whole.tokens, whole.reason)
        assert again.reasoning_tokens == whole.reasoning_tokens
        assert again.joined() == whole.joined()
    assert made > 10
    assert model.accepted > 0.5 * model.drafted


def _checked(submit: Submit, answer: _Answer) -> bool:
    """Check an answer that ended by itself against what was asked for; return whether there was something to check."""
    source, limits = submit.input, submit.limits
    assert isinstance(source, ChatInput)
    text, reasoning, calls, _ = answer.joined()
    limit = limits.reasoning_tokens
    if limit is not None and source.parse_reasoning:
        marks = re.sub(r"<\|?[a-z_/]+\|?>", "_", reasoning)
        assert len(marks.removesuffix(marks[marks.rfind("</") :]) if "</" in marks else marks) <= limit
    truncated = limits.stop or limits.stop_ids or submit.sampling.bad_words or answer.reason == "length"
    with_tools = source.parse_tools and source.tools_json and source.tool_choice.mode != "none"
    if truncated or limits.min_tokens:
        return False
    if with_tools and source.tool_choice.mode == "required":
        assert answer.reason == "tool_calls"
        assert not text.strip()
        assert calls
        assert len(calls) == 1 or (source.tool_choice.parallel and not source.tool_choice.name)
        assert all(_valid(call, source.tool_choice.name) for call in calls)
        return True
    if submit.grammar is None:
        return False
    if calls:
        assert with_tools
        assert answer.reason == "tool_calls"
        assert all(_valid(call) for call in calls)
        assert not text.strip()
    elif not source.parse_reasoning:
        return False
    elif submit.grammar.kind == "json_schema":
        assert list(json.loads(text)) == ["n"]
    elif submit.grammar.kind == "choice":
        assert text in ("abba", "baab")
    else:
        assert re.fullmatch(submit.grammar.source, text)
    return True


def _valid(call: Call, name: str = "") -> bool:
    arguments = call.decoded
    expected = {name} if name else {"f", "go"}
    return call.name in expected and list(arguments) == ["a", "b"] and arguments["b"] in ("x", "y")


def test_an_answer_that_ends_by_itself_is_what_was_asked_for(model: Model) -> None:
    checked = 0
    for seed in range(1000, 1200):
        submit = _request(random.Random(seed))
        answer = model.answer(submit)
        if isinstance(answer, Failed):
            continue
        checked += _checked(submit, answer)
    assert checked > 3


@pytest.mark.parametrize(
    ("tools_json", "grammar", "words", "field"),
    [
        ("", Grammar("choice", '["a"]', "guided_choice"), ("a",), "guided_choice"),
        ('[{"type": "function", "function": {"name": "f"}}]', None, ("<tool_call>",), "tools"),
    ],
)
def test_bad_words_that_leave_a_grammar_no_first_token_are_refused_by_its_field(
    tools_json: str, grammar: Grammar | None, words: tuple[str, ...], field: str
) -> None:
    source = ChatInput((Message("user", "hi"),), tools_json, tool_choice=ToolChoice("required"), parse_tools=True)
    made = Model("hermes")
    failed = made.answer(Submit(1, "request", source, Sampling(bad_words=words), Limits(), grammar=grammar))
    made.compiler.close()
    assert isinstance(failed, Failed)
    assert (failed.code, failed.field) == (ErrorCode.INVALID, field)
    assert "bad_words" in failed.text
