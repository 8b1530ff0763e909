"""Admission by the output processor: refusals, bounds and deadlines."""

import math
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.events import Delta, Failed, Finished, Gauges, Step
from protocol.request import ChatInput, Input, Message, Sampling, TemplateOptions, TextInput, TokensInput
from protocol.scheduling import Urgency
from tests.workers.process.output_processor.stepped_worker import end, processor, request_of, spell, step, submit
from workers.engine.step_result import SequenceFailure
from workers.process.output_processor import OutputProcessor
from workers.text.byte_tokenizer import ByteTokenizer
from workers.text.template import ChatTemplate
from workers.text.tokenizer import Tokenizer

TOOLS = '[{"type": "function"}]'


class WithTemplate(ByteTokenizer):
    """Byte tokenizer with a real chat template."""

    def __init__(self, source: str | None) -> None:
        self.chat = None if source is None else ChatTemplate({"default": source})  # type: ignore[assignment]


def test_chat_goes_through_the_template() -> None:
    chat = ChatInput((Message("user", "hi"),))
    request = request_of(processor().admit(submit(source=chat)))
    assert bytes(request.prompt) == b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_tools_reach_the_template() -> None:
    tokenizer = WithTemplate("{{ tools[0].type }}")
    chat = ChatInput((Message("user", "hi"),), TOOLS)
    assert bytes(request_of(processor(tokenizer).admit(submit(source=chat))).prompt) == b"function"


def test_names_and_options_reach_the_template() -> None:
    each = "{% for m in messages %}{{ m.name is defined }} {{ m.name }};{% endfor %}"
    source = each + "{{ enable_thinking }} {{ thinking is defined }}"
    messages = (Message("user", "a", "anna"), Message("user", "b"))
    chat = ChatInput(messages, options=TemplateOptions(enable_thinking=False))
    prompt = bytes(request_of(processor(WithTemplate(source)).admit(submit(source=chat))).prompt)
    assert prompt == b"True anna;False ;False False"


def test_token_prompts_are_passed_unchanged() -> None:
    assert request_of(processor().admit(submit(source=TokensInput((1, 2))))).prompt == (1, 2)


def test_everything_else_reaches_the_engine() -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    request = request_of(processor().admit(submit(5, sampling=sampling, max_tokens=3, resume=(97,))))
    assert (request.stream, request.sampling, request.max_tokens, request.resume) == (5, sampling, 3, (97,))


@pytest.mark.parametrize(
    ("tokenizer", "source", "code", "field"),
    [
        (WithTemplate(None), ChatInput((Message("user", "x"),)), ErrorCode.UNSUPPORTED, "messages"),
        (ByteTokenizer(), ChatInput((Message("user", "x"),), TOOLS), ErrorCode.UNSUPPORTED, "tools"),
        (WithTemplate("{{ tools }}"), ChatInput((Message("user", "x"),), "{"), ErrorCode.INVALID, "tools"),
        (WithTemplate("{{ tools }}"), ChatInput((Message("user", "x"),), "[1]"), ErrorCode.INVALID, "tools"),
        (WithTemplate("{{ tools }}"), ChatInput((Message("user", "x"),), "[" * 9999), ErrorCode.INVALID, "tools"),
        (
            WithTemplate("{{ raise_exception('no') }}"),
            ChatInput((Message("user", "x"),)),
            ErrorCode.TEMPLATE,
            "messages",
        ),
    ],
    ids=["no-template", "no-place-for-tools", "tools-json", "tools-list", "tools-deep", "template-refuses"],
)
def test_a_refusal_names_the_field(tokenizer: Tokenizer, source: Input, code: ErrorCode, field: str) -> None:
    table = processor(tokenizer)
    answer = table.admit(submit(source=source)).answer
    assert isinstance(answer, Failed)
    assert (answer.code, answer.field, table.live) == (code, field, 0)


@pytest.mark.parametrize(
    ("source", "options", "field"),
    [
        (TextInput("x"), {}, "prompt"),
        (ChatInput((Message("user", "x"),)), {}, "messages"),
        (TokensInput((1,)), {"stop": ("x",)}, "stop"),
    ],
    ids=["text", "chat", "stop"],
)
def test_without_a_tokenizer_text_is_unsupported(source: Input, options: Any, field: str) -> None:
    answer = OutputProcessor(None, max_live=1, clock=lambda: 0.0).admit(submit(source=source, **options)).answer
    assert isinstance(answer, Failed)
    assert (answer.code, answer.field) == (ErrorCode.UNSUPPORTED, field)


def test_without_a_tokenizer_tokens_are_served() -> None:
    table = OutputProcessor(None, max_live=1, clock=lambda: 0.0)
    assert request_of(table.admit(submit(source=TokensInput((1,))))).eos == frozenset()
    frames = table.process(step((1, 7), ends=[end()])).frames
    assert frames[0] == Step((Delta(1, (7,), ""),), Gauges(reached=1))
    assert isinstance(frames[1], Finished)


def test_the_table_is_bounded() -> None:
    table = processor(max_live=2)
    assert [request_of(table.admit(submit(stream))).stream for stream in (1, 2)] == [1, 2]
    answer = table.admit(submit(3)).answer
    assert isinstance(answer, Failed)
    assert answer.code is ErrorCode.OVERLOADED
    table.process(step((1, 97), ends=[end(1)]))
    assert table.admit(submit(4)).request is not None


@pytest.mark.parametrize("source", [TextInput("x" * 101), ChatInput((Message("user", "x" * 101),))])
def test_text_over_the_context_is_not_tokenized(source: Input) -> None:
    table = OutputProcessor(ByteTokenizer(), max_live=9, clock=lambda: 0.0, context=100)
    answer = table.admit(submit(source=source)).answer
    assert isinstance(answer, Failed)
    assert answer.code is ErrorCode.CONTEXT
    assert answer.field in ("prompt", "messages")
    assert table.admit(submit(2, "x" * 100)).request is not None


def test_deadlines() -> None:
    now = [10.0]
    table = processor(clock=lambda: now[0])
    table.admit(submit(1, deadline_ms=2000))
    table.admit(submit(2, deadline_ms=500))
    table.admit(submit(3))
    assert table.next_deadline() == 10.5
    now[0] = 10.499
    assert table.expire() == []
    now[0] = 10.5
    (failed,) = table.expire()
    assert (failed.stream, failed.code, failed.field) == (2, ErrorCode.DEADLINE, "deadline_ms")
    assert table.process(step((2, 97), ends=[end(2)])).frames == [Step((), Gauges(reached=3))], "its terminal was sent"
    table.process(step((1, 97), ends=[end(1)]))
    assert table.next_deadline() is None
    assert table.live == 1


@pytest.mark.parametrize(("arrived", "left"), [(10.0, 2.0), (8.5, 0.5), (8.0, None)])
def test_the_time_before_the_prompt_was_built_counts_as_waiting(arrived: float, left: float | None) -> None:
    table = processor(clock=lambda: 10.0)
    result = table.admit(submit(queue_ms=2000), arrived=arrived)
    if left is None:
        assert isinstance(result.answer, Failed)
        assert result.answer.code is ErrorCode.QUEUE_TIMEOUT
    else:
        assert request_of(result).queue_s == left
    assert table.live == (left is not None)


def test_the_engine_gets_class_and_priority() -> None:
    table = processor()
    asked = [submit(1), submit(2, priority_class="high", priority=-7), submit(3, priority_class="low")]
    urgencies = [request_of(table.admit(each)).urgency for each in asked]
    assert urgencies == [Urgency(1, 0), Urgency(0, -7), Urgency(2, 0)]
    assert request_of(table.admit(submit(4))).queue_s == math.inf


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    table = processor()
    table.admit(submit(0, deadline_ms=1000))
    for stream in range(1, 1000):
        table.admit(submit(stream, deadline_ms=600_000))
        table.process(step((stream, 97), ends=[end(stream)]))
        assert table.next_deadline() == 1.0
        assert len(table._deadlines) < 80


def test_a_deadline_after_the_stop_changes_nothing() -> None:
    now = [0.0]
    table = processor(clock=lambda: now[0])
    table.admit(submit(stop=("b",), deadline_ms=1000))
    table.process(step(*spell(1, b"ab")))
    now[0] = 2.0
    assert table.expire() == []
    assert table.live == 1


def test_exiting_ends_every_request_once() -> None:
    table = processor()
    table.admit(submit(1, deadline_ms=5))
    table.admit(submit(2))
    failed = table.fail_all(ErrorCode.DRAINING, "bye")
    assert [(each.stream, each.code) for each in failed] == [(1, ErrorCode.DRAINING), (2, ErrorCode.DRAINING)]
    assert table.process(step((1, 97), ends=[end(1)])).frames == [Step((), Gauges(reached=2))]
    assert (table.live, table.next_deadline(), table.fail_all(ErrorCode.DRAINING, "")) == (0, None, [])


@pytest.mark.parametrize("allowed", [(), (97,)], ids=["reasoning", "allowed tokens"])
def test_a_constraint_that_fails_has_its_field(allowed: tuple[int, ...]) -> None:
    """Without a grammar, allowed tokens are the constraint."""
    table = OutputProcessor(ByteTokenizer(), max_live=1, clock=lambda: 0.0, vocab_size=257)
    request_of(table.admit(submit(sampling=Sampling(allowed_tokens=allowed))))
    refused = SequenceFailure(1, ErrorCode.INVALID, "it allows no first token", "constraint")
    (_, failed) = table.process(step(failures=[refused])).frames
    assert isinstance(failed, Failed)
    assert failed.field == ("allowed_token_ids" if allowed else "thinking_token_budget")
