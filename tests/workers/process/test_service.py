"""Worker side of the protocol over a real link and a real engine thread, with a scripted model."""

import asyncio
import os
import random
import threading
from typing import Any

import pytest
import structlog

from protocol.bounds import PROTOCOL_VERSION
from protocol.commands import Cancel, Command, Drain, Stop, Tokenize
from protocol.errors import ByeReason, ErrorCode
from protocol.events import Bye, Failed, Finished, Gauges, Heartbeat, Hello, Loading, Step, Tokenized
from protocol.request import ChatInput, Message, TokensInput
from tests.workers.process.harness.gateway_peer import (
    PATIENCE_S,
    SLOW,
    Peer,
    run_scenario,
    scripted,
    service,
    submit,
    with_worker,
)
from workers.engine.engine import BatchEngine
from workers.faults.plan import raising
from workers.load_options import Progress
from workers.process.loading import Loaded, load
from workers.process.prompts.tokenize_queue import MAX_INLINE_COST
from workers.process.spec import WorkerSpec
from workers.scripted.runner import ScriptedRunner
from workers.text.byte_tokenizer import ByteTokenizer


@with_worker(name="w7", max_batch_size=4, context=64)
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
        model_context=64,
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
    order = [type(frame).__name__ for frame in peer.frames if not isinstance(frame, Heartbeat | Loading | Step)]
    assert order == ["Hello", "Ready", "Finished", "Bye"]


@with_worker()
async def test_nothing_follows_bye(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, ""), submit(2, ChatInput((Message("user", "x"),), tools_json="[]x")), Stop())
    await peer.bye()
    assert await peer.exit_code() == 0
    assert isinstance(peer.frames[-1], Bye)


@with_worker(max_batch_size=8)
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


@with_worker(max_batch_size=2, **SLOW)
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


@with_worker()
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


@with_worker()
async def test_a_resumed_stream_continues(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, max_tokens=20))
    await peer.terminal(1)
    tokens = peer.tokens(1)
    peer.send(submit(2, max_tokens=20, resume=tuple(tokens[:7])))
    ended = await peer.terminal(2)
    assert isinstance(ended, Finished)
    assert tokens[:7] + peer.tokens(2) == tokens
    assert ended.usage.completion_tokens == 20


@with_worker(context=32, max_queue=1, max_batch_size=1, **SLOW)
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


@with_worker(tokens_per_second=5.0)
async def test_a_deadline_ends_a_request(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, deadline_ms=300), submit(2, max_tokens=3))
    failed = await peer.terminal(1)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.field) == (ErrorCode.DEADLINE, "deadline_ms")
    assert isinstance(await peer.terminal(2), Finished)
    await peer.until(lambda: peer.gauges().slots_active == 0)


@with_worker(process=True, tokens_per_second=0.2)
async def test_an_idle_worker_sends_heartbeats(peer: Peer) -> None:
    """Also while the engine is inside a step: the event loop sends it, with the engine's last gauges."""
    await peer.ready()
    idle = await peer.expect(Heartbeat)
    assert idle.gauges == Gauges(memory_bytes=idle.gauges.memory_bytes)
    assert idle.gauges.memory_bytes > 1 << 20
    peer.send(submit(1, max_tokens=9))
    await peer.until(lambda: any(isinstance(frame, Heartbeat) and frame.gauges.steps > 0 for frame in peer.frames))


class Lacking(ScriptedRunner):
    """Runner with a background failure at any time."""

    failed = 0

    @property
    def graphs_failed(self) -> int:
        return self.failed


def _failed(frame: object) -> int:
    return frame.gauges.graphs_failed if isinstance(frame, Heartbeat) else 0


def test_a_heartbeat_reports_what_failed_in_the_background_though_no_step_follows() -> None:
    runner = Lacking(slots=1)

    async def run() -> None:
        engine = BatchEngine(runner, max_queue=1, step_tokens=None)
        async with service(scripted(), lambda spec, progress: Loaded(engine, ByteTokenizer(), 64)) as peer:
            await peer.ready()
            runner.failed = 2
            await peer.until(lambda: any(_failed(each) == 2 for each in peer.frames))

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(4))
def test_every_stream_ends_once_for_any_commands(seed: int) -> None:
    """Random messages of submits and cancels, some with stop strings, deadlines and faults, then a drain."""

    async def scenario(peer: Peer) -> None:
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

    run_scenario(scenario, max_batch_size=3, context=128, max_queue=40, faults=raising(tuple(range(7, 2000, 61))))


class Patient(ByteTokenizer):
    """Tokenizer whose long texts wait on the thread until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def encode(self, text: str, *, special: bool) -> list[int]:
        if len(text) > MAX_INLINE_COST:
            assert self.go.wait(PATIENCE_S)
        return super().encode(text, special=special)


@pytest.mark.parametrize("then", ["drained", "cancelled", "stopped"])
def test_a_long_prompt_delays_no_stream(then: str) -> None:
    """It is being tokenized while another answer is computed from its first to its last token."""
    patient = Patient()

    def patient_load(spec: WorkerSpec, progress: Progress) -> Loaded:
        loaded = load(spec, progress)
        return Loaded(loaded.engine, patient, loaded.context)

    async def run() -> None:
        async with service(scripted(context=2 * MAX_INLINE_COST), patient_load) as peer:
            await peer.ready()
            peer.send(
                submit(1, max_tokens=40), submit(2, "x" * (MAX_INLINE_COST + 1), max_tokens=3), submit(3, max_tokens=3)
            )
            assert isinstance(await peer.terminal(1), Finished)
            commands: dict[str, Command] = {"drained": Drain(60_000), "cancelled": Cancel(2), "stopped": Stop()}
            peer.send(commands[then])
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


@with_worker()
async def test_queries_are_answered_beside_requests(peer: Peer) -> None:
    await peer.ready()
    chat = ChatInput((Message("user", "hi"),))
    peer.send(
        submit(1, max_tokens=4), Tokenize(7, "r7", chat, "text"), Tokenize(8, "r8", TokensInput((104, 105)), "text")
    )
    peer.send(Tokenize(9, "r9", chat))
    text = await peer.expect(Tokenized, lambda answer: answer.query == 7)
    assert text.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert (await peer.expect(Tokenized, lambda answer: answer.query == 8)).text == "hi"
    assert (await peer.expect(Tokenized, lambda answer: answer.query == 9)).count == len(text.text)
    assert isinstance(await peer.terminal(1), Finished)


@with_worker(**SLOW)
async def test_a_draining_worker_refuses_queries(peer: Peer) -> None:
    await peer.ready()
    peer.send(submit(1, max_tokens=4))
    peer.send(Drain(60_000), Tokenize(7, "r7", TokensInput((1,))))
    assert (await peer.expect(Tokenized)).code is ErrorCode.DRAINING
    assert (await peer.bye()).reason is ByeReason.STOPPED
