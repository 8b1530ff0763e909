"""The request table over the real engine and a scripted runner: text, stops, usage, deadlines, one terminal each."""

from collections.abc import Sequence
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Delta, Event, Failed, Finished, Gauges, Step
from protocol.request import ChatInput, Input, Limits, Message, Sampling, TextInput, TokensInput
from workers.delivery import Admitted, Delivery, Outcome
from workers.engine import BatchEngine
from workers.faults import raising
from workers.request import End, Failure, Request, RequestRefused, StepResult, Token
from workers.scripted import ALPHABET, ScriptedRunner
from workers.text.bytes import EOS_ID, ByteTokenizer
from workers.text.stream import TextStream
from workers.text.template import ChatTemplate
from workers.text.vocabulary import Vocabulary

GAUGES = Gauges()
TOOLS = '[{"type": "function"}]'


class WithTemplate(ByteTokenizer):
    """Bytes, and a real template."""

    def __init__(self, source: str | None) -> None:
        self.chat = None if source is None else ChatTemplate({"default": source})  # type: ignore[assignment]


def submit(stream: int = 1, source: Input | str = "hello", **fields: Any) -> Submit:
    given = TextInput(source) if isinstance(source, str) else source
    limits = {name: fields.pop(name) for name in list(fields) if name in Limits.__struct_fields__}
    return Submit(stream, "request", given, fields.pop("sampling", Sampling()), Limits(**limits), **fields)


def delivery(vocabulary: Vocabulary | None = None, clock: Any = lambda: 0.0, **options: Any) -> Delivery:
    return Delivery(vocabulary or ByteTokenizer(), max_live=options.pop("max_live", 64), clock=clock)


def request_of(admitted: Admitted) -> Request:
    assert admitted.request is not None, admitted.answer
    return admitted.request


def step(*tokens: tuple[int, int], ends: Sequence[End] = (), failures: Sequence[Failure] = ()) -> Outcome:
    result = StepResult(tuple(Token(*token) for token in tokens), tuple(ends), tuple(failures), bool(failures))
    return Outcome(result, (), (), GAUGES)


def end(stream: int = 1, reason: Any = "length", prompt: int = 5, completion: int = 1) -> End:
    return End(stream, reason, prompt, completion, 0.0104, 0.2, 3.0)


def spell(stream: int, text: bytes) -> list[tuple[int, int]]:
    return [(stream, byte) for byte in text]


class Worker:
    """Delivery and engine, stepped by hand: the process without its process."""

    def __init__(self, vocabulary: Vocabulary | None = None, **runner: Any) -> None:
        self.runner = ScriptedRunner(slots=runner.pop("slots", 4), **runner)
        self.engine = BatchEngine(self.runner, max_queue=64, step_tokens=64)
        self.delivery = delivery(vocabulary)
        self.frames: list[Event] = []

    def submit(self, *submits: Submit) -> None:
        for each in submits:
            admitted = self.delivery.admit(each)
            if admitted.answer is not None:
                self.frames.append(admitted.answer)
            if admitted.request is not None:
                self._take(admitted.request)

    def _take(self, request: Request) -> None:
        try:
            self.engine.submit(request)
        except RequestRefused as refusal:
            failure = Failure(request.stream, refusal.code, refusal.text, refusal.field)
            self.frames += self.delivery.deliver(Outcome(None, (), (failure,), GAUGES)).frames

    def run(self, steps: int = 10_000) -> None:
        for _ in range(steps):
            if self.engine.idle:
                return
            delivered = self.delivery.deliver(Outcome(self.engine.step(), (), (), self.engine.gauges()))
            self.frames += delivered.frames
            for stream in delivered.finish:
                ended = self.engine.finish(stream)
                if ended is not None:
                    self.frames += self.delivery.deliver(Outcome(None, (ended,), (), GAUGES)).frames

    def tokens(self, stream: int) -> list[int]:
        return [token for delta in self.deltas(stream) for token in delta.tokens]

    def text(self, stream: int) -> str:
        return "".join(delta.text for delta in self.deltas(stream)) + self.finished(stream).text

    def deltas(self, stream: int) -> list[Delta]:
        steps = [frame for frame in self.frames if isinstance(frame, Step)]
        return [delta for step in steps for delta in step.deltas if delta.stream == stream]

    def finished(self, stream: int) -> Finished:
        (terminal,) = [frame for frame in self.frames if isinstance(frame, Finished) and frame.stream == stream]
        return terminal


def test_a_whole_answer() -> None:
    worker = Worker()
    worker.submit(submit(1, "hello", max_tokens=9))
    worker.run()
    assert bytes(worker.tokens(1)).decode() == worker.text(1)
    assert len(worker.tokens(1)) == 9
    assert worker.finished(1).reason == "length"
    assert (worker.finished(1).usage.prompt_tokens, worker.finished(1).usage.completion_tokens) == (5, 9)
    assert worker.delivery.live == 0


def test_one_step_frame_an_engine_step_with_all_deltas() -> None:
    worker = Worker()
    worker.submit(*(submit(stream, max_tokens=3) for stream in range(4)))
    worker.run()
    steps = [frame for frame in worker.frames if isinstance(frame, Step)]
    assert [step.gauges.steps for step in steps] == [1, 2]
    assert [sorted((delta.stream, len(delta.tokens)) for delta in step.deltas) for step in steps] == [
        [(0, 2), (1, 2), (2, 2), (3, 2)],
        [(0, 1), (1, 1), (2, 1), (3, 1)],
    ]
    assert [type(frame) for frame in worker.frames[-4:]] == [Finished] * 4


def test_the_end_of_sequence_has_an_id_and_no_text() -> None:
    table = delivery()
    request_of(table.admit(submit()))
    frames = table.deliver(step((1, ord("a")), (1, EOS_ID), ends=[end(reason="stop", completion=2)])).frames
    assert frames[0] == Step((Delta(1, (ord("a"), EOS_ID), "a"),), Gauges(reached=1))
    assert isinstance(frames[1], Finished)
    assert (frames[1].reason, frames[1].text, frames[1].usage.completion_tokens) == ("stop", "", 2)


def test_the_engine_is_told_what_ends_a_sequence() -> None:
    table = delivery()
    assert request_of(table.admit(submit(1))).eos == {EOS_ID}
    assert request_of(table.admit(submit(2, ignore_eos=True))).eos == frozenset()


def test_times_are_milliseconds() -> None:
    table = delivery()
    table.admit(submit())
    (_, finished) = table.deliver(step((1, 97), ends=[end()])).frames
    assert isinstance(finished, Finished)
    usage = finished.usage
    assert (usage.queue_ms, usage.prefill_ms, usage.decode_ms) == (10, 200, 3000)


def test_half_a_character_comes_out_with_the_terminal() -> None:
    table = delivery()
    table.admit(submit())
    frames = table.deliver(step(*spell(1, "😀".encode()[:2]), ends=[end(completion=2)])).frames
    assert [frames[0].deltas[0].text, frames[1].text] == ["", "\ufffd"]  # type: ignore[union-attr]


class Broken(ByteTokenizer):
    """It cannot decode "#"."""

    def piece(self, token: int, *, first: bool = False) -> bytes:
        if token == ord("#"):
            raise ZeroDivisionError("a defect")
        return super().piece(token, first=first)


class TestDefects:
    """Text code that raises ends the request that it was for, and no other."""

    def test_a_token_that_cannot_be_decoded(self) -> None:
        table = delivery(Broken())
        for stream in (1, 2, 3):
            table.admit(submit(stream))
        ended = step(*spell(1, b"ab"), *spell(2, b"a#b"), *spell(3, b"x#"), ends=[end(1), end(3)])
        delivered = table.deliver(ended)
        assert [type(defect) for defect in delivered.defects.values()] == [ZeroDivisionError] * 2
        assert list(delivered.defects) == [2, 3]
        first, finished, *failed = delivered.frames
        assert isinstance(first, Step)
        assert [(delta.stream, delta.text) for delta in first.deltas] == [(1, "ab")]
        assert isinstance(finished, Finished)
        assert [(each.stream, each.code) for each in failed if isinstance(each, Failed)] == [
            (2, ErrorCode.INTERNAL),
            (3, ErrorCode.INTERNAL),
        ]
        assert table.live == 0
        assert table.deliver(step(*spell(2, b"late"), ends=[end(2)])).frames == [Step((), Gauges(reached=3))]

    def test_a_tail_that_cannot_be_decoded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        table = delivery()
        table.admit(submit())

        def broken(_: object) -> str:
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr(TextStream, "finish", broken)
        delivered = table.deliver(step((1, 97), ends=[end()]))
        assert list(delivered.defects) == [1]
        (failed,) = [frame for frame in delivered.frames if not isinstance(frame, Step)]
        assert isinstance(failed, Failed)
        assert failed.code is ErrorCode.INTERNAL


class TestStops:
    def test_the_text_ends_before_the_stop_and_what_follows_is_dropped(self) -> None:
        table = delivery()
        table.admit(submit(stop=("END",)))
        first = table.deliver(step(*spell(1, b"one E")))
        assert (first.frames[0].deltas[0].text, first.finish) == ("one ", [])  # type: ignore[union-attr]
        second = table.deliver(step(*spell(1, b"NDxyz")))
        delta = second.frames[0].deltas[0]  # type: ignore[union-attr]
        assert (delta.text, bytes(delta.tokens), second.finish) == ("", b"ND", [1])
        late = table.deliver(step(*spell(1, b"more")))
        assert (late.frames, late.finish) == ([Step((), Gauges(reached=1))], [])
        ended = Outcome(None, (end(reason="stop", completion=14),), (), GAUGES)
        (finished,) = table.deliver(ended).frames
        assert isinstance(finished, Finished)
        assert (finished.reason, finished.text) == ("stop", "")
        assert finished.usage.completion_tokens == len("one END")

    @pytest.mark.parametrize("reason", ["length", "stop", "cancelled"])
    def test_an_end_in_the_same_step_is_a_stop(self, reason: str) -> None:
        table = delivery()
        table.admit(submit(stop=("b",)))
        delivered = table.deliver(step(*spell(1, b"ab"), ends=[end(reason=reason)]))
        assert delivered.finish == []
        assert [delivered.frames[1].reason, table.live] == ["stop", 0]  # type: ignore[union-attr]

    def test_a_step_that_fails_after_the_stop_changes_nothing(self) -> None:
        table = delivery()
        table.admit(submit(stop=("b",)))
        table.deliver(step(*spell(1, b"ab")))
        (_, finished) = table.deliver(step(failures=[Failure(1, ErrorCode.STEP, "late")])).frames
        assert isinstance(finished, Finished)
        assert (finished.reason, finished.usage.completion_tokens) == ("stop", 2)

    def test_a_false_alarm_is_sent_with_the_terminal(self) -> None:
        table = delivery()
        table.admit(submit(stop=("END",)))
        frames = table.deliver(step(*spell(1, b"a EN"), ends=[end(completion=4)])).frames
        assert [frames[0].deltas[0].text, frames[1].text] == ["a ", "EN"]  # type: ignore[union-attr]
        assert frames[1].reason == "length"  # type: ignore[union-attr]

    @settings(max_examples=60, deadline=None)
    @given(stop=st.text("".join(map(chr, ALPHABET)), min_size=1, max_size=2), cut=st.integers(0, 40))
    def test_a_run_with_stops_is_the_run_without_cut_short(self, stop: str, cut: int) -> None:
        free, stopped = Worker(), Worker()
        free.submit(submit(1, f"prompt {cut}", max_tokens=40))
        stopped.submit(submit(1, f"prompt {cut}", max_tokens=40, stop=(stop,)))
        free.run()
        stopped.run()
        whole = free.text(1)
        found = whole.find(stop)
        assert stopped.text(1) == (whole if found < 0 else whole[:found])
        counted = 40 if found < 0 else found + len(stop)
        assert stopped.finished(1).usage.completion_tokens == counted == len(stopped.tokens(1))
        assert stopped.finished(1).reason == ("length" if found < 0 else "stop")


class TestResume:
    @settings(max_examples=60, deadline=None)
    @given(cut=st.integers(0, 11), stop=st.sampled_from([(), ("e",), ("zq",), ("a", "th")]))
    def test_another_worker_goes_on_with_no_gap_and_no_repeat(self, cut: int, stop: tuple[str, ...]) -> None:
        """Cut at any token, characters of several bytes and stop strings in the air included."""
        alphabet = tuple("aé😀ez".encode())
        whole, first, second = (Worker(alphabet=alphabet) for _ in range(3))
        whole.submit(submit(1, "p", max_tokens=12, stop=stop))
        whole.run()
        first.submit(submit(1, "p", max_tokens=12, stop=stop))
        while len(first.tokens(1)) < min(cut, len(whole.tokens(1))):
            first.run(1)
        tokens = tuple(first.tokens(1))
        sent = "".join(delta.text for delta in first.deltas(1))
        second.submit(submit(1, "p", max_tokens=12, stop=stop, resume=tokens))
        second.run()
        assert list(tokens) + second.tokens(1) == whole.tokens(1)
        assert sent + second.text(1) == whole.text(1)
        assert second.finished(1).reason == whole.finished(1).reason
        assert second.finished(1).usage.completion_tokens == len(whole.tokens(1))

    @settings(max_examples=300, deadline=None)
    @given(
        tokens=st.lists(st.sampled_from([*"aé😀e".encode(), 0xFF, 999]), min_size=1, max_size=16),
        eos=st.booleans(),
        stop=st.lists(st.text("aeé😀\ufffd", min_size=1, max_size=3), max_size=3).map(tuple),
        prompt=st.sampled_from(["p", "half 😀".encode()[:-2], "chat"]),
        data=st.data(),
    )
    def test_text_before_and_after_any_cut_is_the_text(
        self, tokens: list[int], eos: bool, stop: tuple[str, ...], prompt: Any, data: st.DataObject
    ) -> None:
        """Any tokens (bytes that are no UTF-8 and ids that are no token among them), any stops, any cut."""
        tokens += [EOS_ID] * eos
        source: Input = TokensInput(tuple(prompt)) if isinstance(prompt, bytes) else TextInput(prompt)
        if prompt == "chat":
            source = ChatInput((Message("user", "hi"),))
        whole = self._run(submit(1, source, stop=stop), tokens)
        cut = data.draw(st.integers(0, len(whole[0])), label="cut")
        begun = self._run(submit(1, source, stop=stop), tokens[:cut], ends=False)
        rest = self._run(submit(2, source, stop=stop, resume=tuple(tokens[:cut])), tokens[cut:])
        assert [a + b for a, b in zip(begun[:2], rest[:2], strict=True)] == list(whole[:2])
        assert rest[2:] == whole[2:]

    @staticmethod
    def _run(given: Submit, tokens: Sequence[int], ends: bool = True) -> tuple[list[int], str, str, int, int]:
        """Ids, text, reason and counts of a request whose engine brings these tokens and then ends."""
        table = delivery()
        admitted = table.admit(given)
        frames: list[Event] = [admitted.answer] if admitted.answer is not None else []
        for token in tokens if admitted.request is not None else ():
            delivered = table.deliver(step((given.stream, token)))
            frames += delivered.frames
            if delivered.finish:
                break
        if table.is_live(given.stream) and ends:
            reason = "stop" if tokens[-1:] == [EOS_ID] or given.resume[-1:] == (EOS_ID,) else "length"
            frames += table.deliver(Outcome(None, (end(given.stream, reason),), (), GAUGES)).frames
        deltas = [delta for frame in frames if isinstance(frame, Step) for delta in frame.deltas]
        ids = [token for delta in deltas for token in delta.tokens]
        text = "".join(delta.text for delta in deltas)
        finished = [frame for frame in frames if isinstance(frame, Finished)]
        if not finished:
            return ids, text, "", 0, 0
        (last,) = finished
        return ids, text + last.text, last.reason, last.usage.prompt_tokens, last.usage.completion_tokens

    def test_a_stop_that_was_complete_needs_no_engine(self) -> None:
        table = delivery()
        admitted = table.admit(submit(stop=("b",), resume=tuple(b"ab")))
        assert admitted.request is None
        assert isinstance(admitted.answer, Finished)
        assert (admitted.answer.reason, admitted.answer.usage.completion_tokens) == ("stop", 2)
        assert table.live == 0


class TestPrompts:
    def test_chat_goes_through_the_template(self) -> None:
        chat = ChatInput((Message("user", "hi"),))
        request = request_of(delivery().admit(submit(source=chat)))
        assert bytes(request.prompt) == b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    def test_tools_reach_the_template(self) -> None:
        vocabulary = WithTemplate("{{ tools[0].type }}")
        chat = ChatInput((Message("user", "hi"),), TOOLS)
        assert bytes(request_of(delivery(vocabulary).admit(submit(source=chat))).prompt) == b"function"

    def test_tokens_go_as_they_are(self) -> None:
        assert request_of(delivery().admit(submit(source=TokensInput((1, 2))))).prompt == (1, 2)

    def test_everything_else_reaches_the_engine(self) -> None:
        sampling = Sampling(temperature=1.0, seed=7)
        request = request_of(delivery().admit(submit(5, sampling=sampling, max_tokens=3, resume=(97,))))
        assert (request.stream, request.sampling, request.max_tokens, request.resume) == (5, sampling, 3, (97,))

    @pytest.mark.parametrize(
        ("vocabulary", "source", "code", "field"),
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
    def test_a_refusal_names_the_field(
        self, vocabulary: Vocabulary, source: Input, code: ErrorCode, field: str
    ) -> None:
        table = delivery(vocabulary)
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
    def test_without_a_tokenizer_text_is_unsupported(self, source: Input, options: Any, field: str) -> None:
        answer = Delivery(None, max_live=1, clock=lambda: 0.0).admit(submit(source=source, **options)).answer
        assert isinstance(answer, Failed)
        assert (answer.code, answer.field) == (ErrorCode.UNSUPPORTED, field)

    def test_without_a_tokenizer_tokens_are_served(self) -> None:
        table = Delivery(None, max_live=1, clock=lambda: 0.0)
        assert request_of(table.admit(submit(source=TokensInput((1,))))).eos == frozenset()
        frames = table.deliver(step((1, 7), ends=[end()])).frames
        assert frames[0] == Step((Delta(1, (7,), ""),), Gauges(reached=1))
        assert isinstance(frames[1], Finished)


class TestBounds:
    def test_the_table_is_bounded(self) -> None:
        table = delivery(max_live=2)
        assert [request_of(table.admit(submit(stream))).stream for stream in (1, 2)] == [1, 2]
        answer = table.admit(submit(3)).answer
        assert isinstance(answer, Failed)
        assert answer.code is ErrorCode.OVERLOADED
        table.deliver(step((1, 97), ends=[end(1)]))
        assert table.admit(submit(4)).request is not None

    @pytest.mark.parametrize("source", [TextInput("x" * 101), ChatInput((Message("user", "x" * 101),))])
    def test_text_that_cannot_fit_is_not_tokenized(self, source: Input) -> None:
        table = Delivery(ByteTokenizer(), max_live=9, clock=lambda: 0.0, context=100)
        answer = table.admit(submit(source=source)).answer
        assert isinstance(answer, Failed)
        assert answer.code is ErrorCode.CONTEXT
        assert answer.field in ("prompt", "messages")
        assert table.admit(submit(2, "x" * 100)).request is not None

    def test_deadlines(self) -> None:
        now = [10.0]
        table = delivery(clock=lambda: now[0])
        table.admit(submit(1, deadline_ms=2000))
        table.admit(submit(2, deadline_ms=500))
        table.admit(submit(3))
        assert table.next_deadline() == 10.5
        now[0] = 10.499
        assert table.expire() == []
        now[0] = 10.5
        (failed,) = table.expire()
        assert (failed.stream, failed.code, failed.field) == (2, ErrorCode.DEADLINE, "deadline_ms")
        assert table.deliver(step((2, 97), ends=[end(2)])).frames == [Step((), Gauges(reached=3))], (
            "its terminal was sent"
        )
        table.deliver(step((1, 97), ends=[end(1)]))
        assert table.next_deadline() is None
        assert table.live == 1

    def test_deadlines_of_ended_requests_do_not_pile_up(self) -> None:
        table = delivery()
        table.admit(submit(0, deadline_ms=1000))
        for stream in range(1, 1000):
            table.admit(submit(stream, deadline_ms=600_000))
            table.deliver(step((stream, 97), ends=[end(stream)]))
            assert table.next_deadline() == 1.0
            assert len(table._deadlines) < 80

    def test_a_deadline_after_the_stop_changes_nothing(self) -> None:
        now = [0.0]
        table = delivery(clock=lambda: now[0])
        table.admit(submit(stop=("b",), deadline_ms=1000))
        table.deliver(step(*spell(1, b"ab")))
        now[0] = 2.0
        assert table.expire() == []
        assert table.live == 1

    def test_leaving_ends_everything_once(self) -> None:
        table = delivery()
        table.admit(submit(1, deadline_ms=5))
        table.admit(submit(2))
        failed = table.fail_all(ErrorCode.DRAINING, "bye")
        assert [(each.stream, each.code) for each in failed] == [(1, ErrorCode.DRAINING), (2, ErrorCode.DRAINING)]
        assert table.deliver(step((1, 97), ends=[end(1)])).frames == [Step((), Gauges(reached=2))]
        assert (table.live, table.next_deadline(), table.fail_all(ErrorCode.DRAINING, "")) == (0, None, [])


def test_a_failure_of_the_engine_is_a_failed_frame() -> None:
    table = delivery()
    table.admit(submit())
    failure = Failure(1, ErrorCode.STEP, "decode failed" + "!" * 5000, "x")
    (_, failed) = table.deliver(step((1, 97), failures=[failure])).frames
    assert isinstance(failed, Failed)
    assert (failed.code, len(failed.text), failed.field) == (ErrorCode.STEP, 4096, "x")


def test_what_the_engine_does_not_take_is_a_failed_frame() -> None:
    worker = Worker(context=16)
    worker.submit(submit(1, "far too long a prompt for this"), submit(2, TokensInput((999,))), submit(3, ""))
    worker.run()
    codes = [(frame.stream, frame.code, frame.field) for frame in worker.frames if isinstance(frame, Failed)]
    assert codes == [
        (1, ErrorCode.CONTEXT, "prompt"),
        (2, ErrorCode.INVALID, "prompt"),
        (3, ErrorCode.INVALID, "prompt"),
    ]
    assert worker.delivery.live == 0


def test_a_chat_that_the_engine_does_not_take_is_not_called_a_prompt() -> None:
    worker = Worker(context=64)
    worker.submit(submit(1, ChatInput((Message("user", "x" * 40),))))
    worker.run()
    assert [frame.field for frame in worker.frames if isinstance(frame, Failed)] == ["messages"]


def test_a_failure_in_words_that_utf8_cannot_carry() -> None:
    table = delivery()
    assert table.admit(submit(1)).request
    (_, failed) = table.deliver(step(failures=[Failure(1, ErrorCode.STEP, "no file \udcff")])).frames
    assert isinstance(failed, Failed)
    assert failed.text == "no file ?"


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["submit", "cancel", "step", "stop"]), st.integers(0, 7)), min_size=1, max_size=40
)


@settings(max_examples=80, deadline=None)
@given(operations=OPERATIONS, faults=st.sets(st.integers(1, 20), max_size=3))
def test_any_order_of_events_ends_every_stream_once(operations: list[tuple[str, int]], faults: set[int]) -> None:
    with structlog.testing.capture_logs():  # rendering tracebacks would take most of the time
        _run_operations(operations, faults)


def _run_operations(operations: list[tuple[str, int]], faults: set[int]) -> None:
    worker = Worker(slots=2, faults=raising(faults))
    submitted: list[int] = []
    for operation, number in operations:
        if operation in ("submit", "stop"):
            submitted.append(len(submitted))
            stops = ("a", "e") if operation == "stop" else ()
            worker.submit(submit(submitted[-1], f"prompt {number}", max_tokens=1 + 3 * number, stop=stops))
        elif operation == "cancel" and submitted:
            ended = worker.engine.cancel(submitted[number % len(submitted)])
            outcome = Outcome(None, (ended,) if ended else (), (), GAUGES)
            worker.frames += worker.delivery.deliver(outcome).frames
        else:
            worker.run(1)
    worker.run()
    terminals = [frame.stream for frame in worker.frames if isinstance(frame, Finished | Failed)]
    assert sorted(terminals) == submitted
    assert worker.delivery.live == 0
    for stream in submitted:
        last = max(index for index, frame in enumerate(worker.frames) if getattr(frame, "stream", None) == stream)
        assert not any(d.stream == stream for f in worker.frames[last:] if isinstance(f, Step) for d in f.deltas)
