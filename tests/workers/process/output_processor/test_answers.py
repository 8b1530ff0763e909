"""Output processor over the real engine and a scripted runner: text, usage, internal errors, one terminal frame
each."""

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.events import Delta, Failed, Finished, Gauges, StartedStream, Step
from protocol.request import ChatInput, Message, Sampling, TokensInput
from tests.workers.process.output_processor.stepped_worker import (
    GAUGES,
    Worker,
    end,
    processor,
    request_of,
    spell,
    step,
    submit,
)
from workers.engine.step_result import SequenceFailure, SequenceStart
from workers.faults.plan import raising
from workers.process.output_processor import EngineOutput, OutputProcessor
from workers.text.byte_tokenizer import EOS_ID, ByteTokenizer
from workers.text.detokenizer import IncrementalDetokenizer


def test_a_whole_answer() -> None:
    worker = Worker()
    worker.submit(submit(1, "hello", max_tokens=9))
    worker.run()
    assert bytes(worker.tokens(1)).decode() == worker.text(1)
    assert len(worker.tokens(1)) == 9
    assert worker.finished(1).reason == "length"
    assert (worker.finished(1).usage.prompt_tokens, worker.finished(1).usage.completion_tokens) == (5, 9)
    assert worker.processor.live == 0


def test_an_engine_step_makes_one_step_frame_with_all_deltas() -> None:
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
    table = processor()
    request_of(table.admit(submit()))
    frames = table.process(step((1, ord("a")), (1, EOS_ID), ends=[end(reason="stop", completion=2)])).frames
    assert frames[0] == Step((Delta(1, (ord("a"), EOS_ID), "a"),), Gauges(reached=1))
    assert isinstance(frames[1], Finished)
    assert (frames[1].reason, frames[1].text, frames[1].usage.completion_tokens) == ("stop", "", 2)


def test_the_request_has_the_tokens_that_end_it() -> None:
    table = processor()
    assert request_of(table.admit(submit(1))).eos == {EOS_ID}
    assert request_of(table.admit(submit(2, ignore_eos=True))).eos == frozenset()


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_request_may_name_further_tokens_that_end_it(ignore_eos: bool) -> None:
    table = processor()
    ends = request_of(table.admit(submit(1, stop_ids=(98, 99), ignore_eos=ignore_eos))).eos
    assert ends == {98, 99} | (set() if ignore_eos else {EOS_ID})


@pytest.mark.parametrize(("keep_stop", "text"), [(False, "a"), (True, "ab")])
def test_the_token_that_ends_an_answer_is_text_if_it_is_kept(keep_stop: bool, text: str) -> None:
    table = processor()
    table.admit(submit(stop_ids=(98,), keep_stop=keep_stop))
    frames = table.process(step(*spell(1, b"ab"), ends=[end(reason="stop", completion=2)])).frames
    assert frames[0] == Step((Delta(1, (97, 98), text),), Gauges(reached=1))
    assert isinstance(frames[1], Finished)
    assert (frames[1].reason, frames[1].text) == ("stop", "")


def test_a_stop_token_ends_a_running_sequence_and_its_replay() -> None:
    whole = Worker()
    whole.submit(submit(1, "hello", max_tokens=30))
    whole.run()
    stop = whole.tokens(1)[7]
    expected = whole.tokens(1)[: whole.tokens(1).index(stop) + 1]
    for resumed in range(len(expected) + 1):
        worker = Worker()
        worker.submit(
            submit(1, "hello", max_tokens=30, stop_ids=(stop,), keep_stop=True, resume=tuple(expected[:resumed]))
        )
        worker.run()
        assert [*expected[:resumed], *worker.tokens(1)] == expected
        assert worker.finished(1).reason == "stop"
        assert worker.text(1) == bytes(expected[resumed:]).decode()


def test_open_sampling_parameters_are_those_of_the_checkpoint() -> None:
    table = OutputProcessor(
        ByteTokenizer(), max_live=9, clock=lambda: 0.0, sampling_defaults={"temperature": 0.5, "top_k": 7}
    )
    sampling = Sampling(temperature=1.0, top_p=0.9)
    open_ones = ("temperature", "top_k", "min_p")
    filled = request_of(table.admit(submit(1, sampling=sampling, unset=open_ones))).sampling
    assert filled == Sampling(temperature=0.5, top_k=7, top_p=0.9)
    assert request_of(table.admit(submit(2, sampling=sampling))).sampling == sampling


def test_the_way_to_the_first_token_is_reported_once() -> None:
    """Tokenization is what passed before the admission; the engine knows the rest."""
    now = [5.0]
    table = processor(clock=lambda: now[0])
    request_of(table.admit(submit(), arrived=4.75))
    start = SequenceStart(1, 0.002, 0.03, 12, 8)
    unknown = SequenceStart(9, 0.0, 0.0, 1, 0)
    (first,) = table.process(step((1, 97), starts=[start, unknown])).frames
    assert isinstance(first, Step)
    assert first.started == (StartedStream(1, 250_000, 2000, 30_000, 12, 8),)
    (second,) = table.process(step((1, 97), starts=[start])).frames
    assert isinstance(second, Step)
    assert second.started == ()


def test_times_are_milliseconds() -> None:
    table = processor()
    table.admit(submit())
    (_, finished) = table.process(step((1, 97), ends=[end()])).frames
    assert isinstance(finished, Finished)
    usage = finished.usage
    assert (usage.queue_ms, usage.prefill_ms, usage.decode_ms) == (10, 200, 3000)


def test_an_incomplete_character_is_sent_with_the_terminal_frame() -> None:
    table = processor()
    table.admit(submit())
    frames = table.process(step(*spell(1, "😀".encode()[:2]), ends=[end(completion=2)])).frames
    assert [frames[0].deltas[0].text, frames[1].text] == ["", "\ufffd"]  # type: ignore[union-attr]


class Broken(ByteTokenizer):
    """Tokenizer that cannot decode "#"."""

    def piece(self, token: int, *, first: bool = False) -> bytes:
        if token == ord("#"):
            raise ZeroDivisionError("a bug")
        return super().piece(token, first=first)


class TestTextErrors:
    """An exception in text code ends its own request, and no other."""

    def test_a_bug_in_the_detokenizer_fails_the_request(self) -> None:
        table = processor(Broken())
        for stream in (1, 2, 3):
            table.admit(submit(stream))
        ended = step(*spell(1, b"ab"), *spell(2, b"a#b"), *spell(3, b"x#"), ends=[end(1), end(3)])
        processed = table.process(ended)
        assert [type(error) for error in processed.text_errors.values()] == [ZeroDivisionError] * 2
        assert list(processed.text_errors) == [2, 3]
        first, finished, *failed = processed.frames
        assert isinstance(first, Step)
        assert [(delta.stream, delta.text) for delta in first.deltas] == [(1, "ab")]
        assert isinstance(finished, Finished)
        assert [(each.stream, each.code) for each in failed if isinstance(each, Failed)] == [
            (2, ErrorCode.INTERNAL),
            (3, ErrorCode.INTERNAL),
        ]
        assert table.live == 0
        assert table.process(step(*spell(2, b"late"), ends=[end(2)])).frames == [Step((), Gauges(reached=3))]

    def test_a_bug_in_the_last_text_fails_the_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        table = processor()
        table.admit(submit())

        def broken(_: object) -> str:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(IncrementalDetokenizer, "finish", broken)
        processed = table.process(step((1, 97), ends=[end()]))
        assert list(processed.text_errors) == [1]
        (failed,) = [frame for frame in processed.frames if not isinstance(frame, Step)]
        assert isinstance(failed, Failed)
        assert failed.code is ErrorCode.INTERNAL


def test_a_failure_of_the_engine_is_a_failed_frame() -> None:
    table = processor()
    table.admit(submit())
    failure = SequenceFailure(1, ErrorCode.STEP, "decode failed" + "!" * 5000, "x")
    (_, failed) = table.process(step((1, 97), failures=[failure])).frames
    assert isinstance(failed, Failed)
    assert (failed.code, len(failed.text), failed.field) == (ErrorCode.STEP, 4096, "x")


def test_a_request_refused_by_the_engine_is_a_failed_frame() -> None:
    worker = Worker(context=16)
    worker.submit(submit(1, "far too long a prompt for this"), submit(2, TokensInput((999,))), submit(3, ""))
    worker.run()
    codes = [(frame.stream, frame.code, frame.field) for frame in worker.frames if isinstance(frame, Failed)]
    assert codes == [
        (1, ErrorCode.CONTEXT, "prompt"),
        (2, ErrorCode.INVALID, "prompt"),
        (3, ErrorCode.INVALID, "prompt"),
    ]
    assert worker.processor.live == 0


def test_a_refused_chat_names_the_field_messages() -> None:
    worker = Worker(context=64)
    worker.submit(submit(1, ChatInput((Message("user", "x" * 40),))))
    worker.run()
    assert [frame.field for frame in worker.frames if isinstance(frame, Failed)] == ["messages"]


def test_a_failure_text_with_a_lone_surrogate_is_sent() -> None:
    table = processor()
    assert table.admit(submit(1)).request
    (_, failed) = table.process(step(failures=[SequenceFailure(1, ErrorCode.STEP, "no file \udcff")])).frames
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
            output = EngineOutput(None, (ended,) if ended else (), (), GAUGES)
            worker.frames += worker.processor.process(output).frames
        else:
            worker.run(1)
    worker.run()
    terminals = [frame.stream for frame in worker.frames if isinstance(frame, Finished | Failed)]
    assert sorted(terminals) == submitted
    assert worker.processor.live == 0
    for stream in submitted:
        last = max(index for index, frame in enumerate(worker.frames) if getattr(frame, "stream", None) == stream)
        assert not any(d.stream == stream for f in worker.frames[last:] if isinstance(f, Step) for d in f.deltas)
