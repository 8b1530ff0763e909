"""The worker's side of the protocol, over a real link and a real engine thread, with a scripted model."""

import asyncio
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from actors.endpoint import LocalEndpoint
from actors.link import Link
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import encode
from protocol.commands import Cancel, Command, Drain, Stop, Welcome
from protocol.errors import ByeReason, ErrorCode
from protocol.events import Beat, Bye, Failed, Finished, Gauges, Hello, Loading, Ready, Step
from protocol.request import ChatInput, Message, TokensInput
from tests.workers.process import PATIENCE_S, SLOW, Peer, play, scripted, service, story, submit
from workers.backends import Progress
from workers.ending import EXIT_CODES
from workers.faults import Fault, raising
from workers.intake import INLINE
from workers.loading import Loaded, load
from workers.service import WorkerService
from workers.spec import WorkerSpec
from workers.text.bytes import ByteTokenizer


@story(name="w7", max_batch_size=4, context=64)
async def test_the_order_of_a_life(peer: Peer) -> None:
    hello = await peer.expect(Hello)
    assert hello == Hello(
        protocol=PROTOCOL_VERSION,
        worker="w7",
        incarnation=1,
        pid=os.getpid(),
        model="scripted",
        backend="scripted",
        device="none",
        slots=4,
        context=64,
        config_digest="scripted",
        model_digest="scripted",
    )
    assert (await peer.ready()).capabilities.chat
    peer.send(submit(1, "hello", max_tokens=3))
    ended = await peer.terminal(1)
    peer.send(Stop())
    assert (await peer.bye()).reason is ByeReason.STOPPED
    assert await peer.exit_code() == 0
    assert isinstance(ended, Finished)
    assert (ended.usage.prompt_tokens, ended.usage.completion_tokens, ended.reason) == (5, 3, "length")
    assert bytes(peer.tokens(1)).decode() == peer.text(1)
    order = [type(frame).__name__ for frame in peer.frames if not isinstance(frame, Beat | Loading | Step)]
    assert order == ["Hello", "Ready", "Finished", "Bye"]


@story()
async def test_nothing_follows_bye(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, ""), submit(2, ChatInput((Message("user", "x"),), tools_json="[]x")), Stop())
    await peer.bye()
    assert await peer.exit_code() == 0
    assert isinstance(peer.frames[-1], Bye)


@story(max_batch_size=8)
async def test_prompts_sent_together_start_together(peer: Peer) -> None:
    await peer.ready()
    peer.send(*(submit(stream, f"prompt {stream}", max_tokens=16) for stream in range(6)))
    for stream in range(6):
        await peer.terminal(stream)
    first = peer.steps()[0]
    assert sorted(delta.stream for delta in first.deltas) == list(range(6))
    last = peer.steps()[-1].gauges
    assert (last.decode_steps, last.steps, last.decode_tokens) == (15, 15, 6 * 16)
    assert (last.sequences_started, last.sequences_completed, last.slots_active) == (6, 6, 0)


@story(max_batch_size=2, **SLOW)
async def test_a_cancel_in_the_middle_frees_the_slot(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1), submit(2), submit(3))
    await peer.until(lambda: len(peer.tokens(1)) >= 3)
    peer.send(Cancel(1), Cancel(99))
    ended = await peer.terminal(1)
    assert isinstance(ended, Finished)
    assert ended.reason == "cancelled"
    assert ended.usage.completion_tokens == len(peer.tokens(1))
    await peer.until(lambda: len(peer.tokens(3)) >= 1)
    peer.send(Cancel(3))
    assert isinstance(await peer.terminal(3), Finished)


@story()
async def test_stop_strings(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, max_tokens=40))
    await peer.terminal(1)
    whole = peer.text(1)
    stop = whole[10:13]
    peer.send(submit(2, max_tokens=40, stop=(stop, "\x00")))
    ended = await peer.terminal(2)
    assert isinstance(ended, Finished)
    assert ended.reason == "stop"
    assert peer.text(2) == whole[: whole.find(stop)]
    assert ended.usage.completion_tokens == len(peer.tokens(2)) == whole.find(stop) + 3
    await peer.until(lambda: peer.gauges().slots_active == 0)


@story()
async def test_a_resumed_stream_goes_on(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, max_tokens=20))
    await peer.terminal(1)
    tokens = peer.tokens(1)
    peer.send(submit(2, max_tokens=20, resume=tuple(tokens[:7])))
    ended = await peer.terminal(2)
    assert isinstance(ended, Finished)
    assert tokens[:7] + peer.tokens(2) == tokens
    assert ended.usage.completion_tokens == 20


@story(context=32, max_queue=1, max_batch_size=1, **SLOW)
async def test_refusals_name_what_is_wrong(peer: Peer) -> None:
    await peer.ready()
    tools = ChatInput((Message("user", "x"),), '[{"type": "function"}]')
    peer.send(submit(1, "x" * 40), submit(2, TokensInput((999,))), submit(3, tools))
    answers = [await peer.terminal(stream) for stream in (1, 2, 3)]
    assert [(answer.code, answer.field) for answer in answers if isinstance(answer, Failed)] == [
        (ErrorCode.CONTEXT, "prompt"),
        (ErrorCode.INVALID, "prompt"),
        (ErrorCode.UNSUPPORTED, "tools"),
    ]
    peer.send(*(submit(stream) for stream in range(10, 20)))
    last = await peer.terminal(19)
    assert isinstance(last, Failed)
    assert last.code is ErrorCode.OVERLOADED


@story(tokens_per_second=5.0)
async def test_a_deadline_ends_a_request(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, deadline_ms=300), submit(2, max_tokens=3))
    failed = await peer.terminal(1)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.field) == (ErrorCode.DEADLINE, "deadline_ms")
    assert isinstance(await peer.terminal(2), Finished)
    await peer.until(lambda: peer.gauges().slots_active == 0)


@story(process=True, tokens_per_second=0.2)
async def test_a_beat_comes_when_nothing_else_does(peer: Peer) -> None:
    """Also while the engine is inside a step: the beat is the loop's, its gauges are the engine's."""
    await peer.ready()
    idle = await peer.expect(Beat)
    assert idle.gauges == Gauges()
    peer.send(submit(1, max_tokens=9))
    await peer.until(lambda: any(isinstance(frame, Beat) and frame.gauges.steps > 0 for frame in peer.frames))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_sent_every_stream_ends_once(seed: int) -> None:
    """Random messages of submits and cancels, some with stop strings, deadlines and faults, then a drain."""

    async def told(peer: Peer) -> None:
        await peer.ready()
        chance, submitted = random.Random(seed), 0
        for _ in range(60):
            message: list[Command] = []
            for _ in range(chance.randint(1, 4)):
                if submitted and chance.random() < 0.3:
                    message.append(Cancel(chance.randrange(submitted)))
                    continue
                limits: dict[str, Any] = {"max_tokens": chance.randint(1, 60)}
                if chance.random() < 0.4:
                    limits["stop"] = tuple(chance.sample(["a", "th", "e ", "zzz", "qu"], 2))
                if chance.random() < 0.2:
                    limits["deadline_ms"] = chance.randint(1, 20)
                message.append(submit(submitted, "p" * chance.randint(0, 70), **limits))
                submitted += 1
            peer.send(*message)
            for _ in range(chance.randint(0, 5)):  # let the worker go on for some turns of the loop, or for none
                await asyncio.sleep(0)
        peer.send(Drain(60_000))
        await peer.bye()
        terminals = [frame.stream for frame in peer.frames if isinstance(frame, Finished | Failed)]
        assert sorted(terminals) == list(range(submitted))
        ended: set[int] = set()
        for frame in peer.frames:
            if isinstance(frame, Step):
                assert ended.isdisjoint(delta.stream for delta in frame.deltas)
            elif isinstance(frame, Finished | Failed):
                ended.add(frame.stream)
        assert peer.gauges().slots_active == peer.gauges().queue_depth == 0

    play(told, max_batch_size=3, context=128, max_queue=40, faults=raising(tuple(range(7, 2000, 61))))


class TestLeaving:
    def test_drain_finishes_what_is_live_and_admits_nothing(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.send(submit(1, max_tokens=10))
            await peer.until(lambda: peer.tokens(1))
            peer.send(Drain(60_000), submit(2))
            refused = await peer.terminal(2)
            assert isinstance(refused, Failed)
            assert refused.code is ErrorCode.DRAINING
            assert isinstance(await peer.terminal(1), Finished)
            assert (await peer.bye()).reason is ByeReason.STOPPED
            assert await peer.exit_code() == 0

        play(told, **SLOW)

    def test_a_drain_with_nothing_live_leaves_at_once(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.send(Drain(60_000))
            await peer.bye()
            assert await peer.exit_code() == 0

        play(told)

    def test_the_grace_of_a_drain_is_a_bound(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.send(submit(1))
            await peer.until(lambda: peer.tokens(1))
            peer.send(Drain(100))
            failed = await peer.terminal(1)
            assert isinstance(failed, Failed)
            assert failed.code is ErrorCode.DRAINING
            assert (await peer.bye()).reason is ByeReason.STOPPED

        play(told, **SLOW)

    def test_stop_fails_what_is_live(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.send(submit(1), submit(2))
            await peer.until(lambda: peer.tokens(1))
            peer.send(Stop())
            assert [getattr(await peer.terminal(stream), "code", None) for stream in (1, 2)] == [ErrorCode.DRAINING] * 2
            assert (await peer.bye()).reason is ByeReason.STOPPED
            assert await peer.exit_code() == 0

        play(told, **SLOW)

    def test_a_lost_link_is_the_end(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.detach()
            assert await peer.exit_code() == EXIT_CODES[ByeReason.ORPHANED]

        play(told)

    def test_a_refused_worker_leaves(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.expect(Hello)
            peer.send(Welcome(1, "protocol version 1 is not 2"))
            bye = await peer.bye()
            assert (bye.reason, bye.text) == (ByeReason.REFUSED, "protocol version 1 is not 2")
            assert await peer.exit_code() == EXIT_CODES[ByeReason.REFUSED]

        play(told)

    def test_a_welcome_for_another_incarnation_is_a_refusal(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.expect(Hello)
            peer.send(Welcome(2))
            assert (await peer.bye()).reason is ByeReason.REFUSED

        play(told)

    @pytest.mark.parametrize(
        "frames",
        [
            pytest.param([b"\xc1garbage"], id="garbage"),
            pytest.param([encode(submit(1)), b""], id="after-a-request"),
            pytest.param([encode(Beat(Gauges()))], id="an-event"),
            pytest.param([encode(Welcome(1))], id="welcome-again"),
            pytest.param([encode(submit(5)), encode(submit(5))], id="same-stream"),
        ],
    )
    def test_a_frame_that_is_none_ends_the_worker(self, frames: list[bytes]) -> None:
        """Whoever waits for what that frame asked would wait for ever: the loss of the worker tells him."""

        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.send_bytes(frames)
            assert (await peer.bye()).reason is ByeReason.PROTOCOL
            assert await peer.exit_code() == EXIT_CODES[ByeReason.PROTOCOL]
            streams = [frame.stream for frame in peer.frames if isinstance(frame, Failed)]
            assert len(streams) == len(set(streams))

        play(told, **SLOW)


class TestFaults:
    def test_a_failed_step_fails_only_its_requests(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.send(submit(1, max_tokens=5))
            failed = await peer.terminal(1)
            assert isinstance(failed, Failed)
            assert failed.code is ErrorCode.STEP
            peer.send(submit(2, max_tokens=5))
            assert isinstance(await peer.terminal(2), Finished)

        play(told, faults=raising((1,)))

    def test_ten_failed_steps_in_a_row_end_the_worker(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.ready()
            peer.send(*(submit(stream, max_tokens=5) for stream in range(12)))
            bye = await peer.bye()
            assert (bye.reason, bye.text) == (ByeReason.STEPS_FAILED, "10 engine steps in a row failed")
            codes = [(await peer.terminal(stream)).code for stream in range(12)]  # type: ignore[union-attr]
            assert codes == [ErrorCode.STEP] * 10 + [ErrorCode.DRAINING] * 2
            assert await peer.exit_code() == EXIT_CODES[ByeReason.STEPS_FAILED]

        play(told, max_batch_size=1, faults=raising(tuple(range(1, 100))))

    def test_a_failed_load_says_why(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.expect(Hello)
            peer.send(Welcome(1))
            bye = await peer.bye()
            assert bye.reason is ByeReason.LOAD_FAILED
            assert bye.text
            assert await peer.exit_code() == EXIT_CODES[ByeReason.LOAD_FAILED]

        play(told, faults=(Fault("fail_load"),))

    def test_a_model_that_is_not_there(self, tmp_path: Path) -> None:
        async def told(peer: Peer) -> None:
            hello = await peer.expect(Hello)
            assert (hello.context, hello.device) == (0, "unknown")
            peer.send(Welcome(1))
            bye = await peer.bye()
            assert (bye.reason, "nowhere" in bye.text) == (ByeReason.LOAD_REFUSED, True)

        play(told, backend="iree", model_path=str(tmp_path / "nowhere"))

    def test_a_request_before_ready_is_refused(self) -> None:
        async def told(peer: Peer) -> None:
            await peer.expect(Hello)
            peer.send(Welcome(1), submit(1))
            failed = await peer.terminal(1)
            assert isinstance(failed, Failed)
            assert failed.code is ErrorCode.UNAVAILABLE
            peer.send(Drain(60_000))
            await peer.bye()
            assert not any(isinstance(frame, Ready) for frame in peer.frames)

        play(told, load_seconds=1.0)


class Panic(BaseException):
    """As Rust code's: no `Exception`."""


class Broken(ByteTokenizer):
    """A tokenizer with a defect: it cannot encode "!", and cannot decode what follows "?"."""

    def __init__(self, defect: type[BaseException]) -> None:
        super().__init__()
        self._defect = defect

    def encode(self, text: str, *, special: bool) -> list[int]:
        if "!" in text:
            raise self._defect("a defect")
        return [0x3F] if "?" in text else super().encode(text, special=special)

    def piece(self, token: int, *, first: bool = False) -> bytes:
        if first:
            raise self._defect("a defect")
        return b"" if token == 0x3F else super().piece(token, first=first)


def broken(defect: type[BaseException]) -> Callable[[WorkerSpec, Progress], Loaded]:
    """The load of a worker whose tokenizer is `Broken`."""

    def broken_load(spec: WorkerSpec, progress: Progress) -> Loaded:
        loaded = load(spec, progress)
        return Loaded(loaded.engine, Broken(defect), loaded.context)

    return broken_load


class Patient(ByteTokenizer):
    """A thread that encodes a long text waits until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def encode(self, text: str, *, special: bool) -> list[int]:
        if len(text) > INLINE:
            assert self.go.wait(PATIENCE_S)
        return super().encode(text, special=special)


@pytest.mark.parametrize("then", ["drained", "cancelled", "stopped"])
def test_a_long_prompt_holds_no_stream_up(then: str) -> None:
    """It is being tokenized while another answer is computed from its first token to its last."""
    patient = Patient()

    def patient_load(spec: WorkerSpec, progress: Progress) -> Loaded:
        loaded = load(spec, progress)
        return Loaded(loaded.engine, patient, loaded.context)

    async def run() -> None:
        async with service(scripted(context=2 * INLINE), patient_load) as peer:
            await peer.ready()
            peer.send(submit(1, max_tokens=40), submit(2, "x" * (INLINE + 1), max_tokens=3), submit(3, max_tokens=3))
            assert isinstance(await peer.terminal(1), Finished)
            peer.send({"drained": Drain(60_000), "cancelled": Cancel(2), "stopped": Stop()}[then])
            if then == "cancelled":
                ended = await peer.terminal(2)
                assert isinstance(ended, Finished)
                assert ended.reason == "cancelled"
                peer.send(Drain(60_000))
            elif then == "stopped":
                assert [(await peer.terminal(stream)).code for stream in (2, 3)] == [ErrorCode.DRAINING] * 2  # type: ignore[union-attr]
            patient.go.set()
            if then != "stopped":
                assert isinstance(await peer.terminal(3), Finished)
            assert isinstance(await peer.terminal(2), Failed if then == "stopped" else Finished)
            assert (await peer.bye()).reason is ByeReason.STOPPED

    with structlog.testing.capture_logs():
        asyncio.run(run())


class TestDefects:
    """The service in this process, with text code that fails."""

    def test_a_load_that_fails_in_words_that_utf8_cannot_carry(self) -> None:
        def broken_load(spec: WorkerSpec, progress: Progress) -> Loaded:
            progress("weights of \udcff", 0, 1)
            raise ValueError("no tensor \udcff")

        async def run() -> None:
            async with service(scripted(), broken_load) as peer:
                await peer.expect(Hello)
                peer.send(Welcome(1))
                bye = await peer.bye()
                assert (bye.reason, bye.text) == (ByeReason.LOAD_FAILED, "no tensor ?")

        with structlog.testing.capture_logs():
            asyncio.run(run())

    @pytest.mark.parametrize(
        ("prompt", "defect", "logged"),
        [("!", ValueError, "admission_failed"), ("!", Panic, "admission_failed"), ("?", ValueError, "text_failed")],
    )
    def test_a_defect_in_the_text_of_one_request_ends_that_request(
        self, prompt: str, defect: type[BaseException], logged: str
    ) -> None:
        async def run() -> None:
            async with service(scripted(max_batch_size=2), broken(defect)) as peer:
                await peer.ready()
                peer.send(submit(1, "neighbour", max_tokens=40), submit(2, prompt), submit(3, "next", max_tokens=2))
                failed = await peer.terminal(2)
                assert isinstance(failed, Failed)
                assert failed.code is ErrorCode.INTERNAL
                assert isinstance(await peer.terminal(1), Finished)
                assert isinstance(await peer.terminal(3), Finished)
                await peer.until(lambda: peer.gauges().slots_active == 0)
                peer.send(Stop())
                assert (await peer.bye()).reason is ByeReason.STOPPED

        with structlog.testing.capture_logs() as logs:
            asyncio.run(run())
        assert logged in {line["event"] for line in logs}

    def test_a_defect_that_cannot_be_contained_is_told_and_not_silence(self) -> None:
        async def run() -> None:
            async with service(scripted(), broken(Panic)) as peer:
                await peer.ready()
                peer.send(submit(1, "?"))
                failed = await peer.terminal(1)
                assert isinstance(failed, Failed)
                assert failed.code is ErrorCode.LOST
                assert (await peer.bye()).reason is ByeReason.INTERNAL
                assert await peer.exit_code() == EXIT_CODES[ByeReason.INTERNAL]

        with structlog.testing.capture_logs() as logs:
            asyncio.run(run())
        assert "callback_failed" in {line["event"] for line in logs}

    def test_a_worker_that_leaves_before_hello_says_nothing(self) -> None:
        async def run() -> None:
            with LocalEndpoint() as endpoint:
                peer = Peer()
                peer.attach(Link.bind(endpoint.address, peer.on_message, on_lost=peer.on_lost))
                hasty = WorkerService(scripted(), endpoint.address, 1)
                left = await hasty.run(lambda: hasty.leave(ByeReason.STOPPED, "at once"))
                assert (left.reason, left.stuck, peer.frames) == (ByeReason.STOPPED, False, [])
                peer.detach()

        asyncio.run(run())
