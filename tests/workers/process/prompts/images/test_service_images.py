"""Images over the link of a scripted worker: capabilities, cancels, and deaths amid the encoding and the answer."""

import asyncio

import pytest
from msgspec.structs import replace

from protocol.commands import Cancel, ReadRows, Submit, Tokenize, WriteRows
from protocol.errors import ErrorCode
from protocol.events import Failed, Finished, Rows, RowsWritten, Step, Tokenized
from protocol.request import ChatInput, Image, ImagePlace, Message
from tests.workers.process.harness.gateway_peer import Peer, scripted, service, submit, with_worker, worker
from workers.faults.plan import Fault
from workers.scripted.images import PARTS

CAT = Image("png", 100, 60, b"\x89PNGcat", field="messages[0].content[1]")
ASKED = submit(
    1, ChatInput((Message("user", "What is it?", images=(ImagePlace(0, 11),)),), images=(CAT,)), max_tokens=12
)
LONG = replace(ASKED, limits=replace(ASKED.limits, max_tokens=10_000))


@with_worker(images=True)
async def test_a_worker_with_a_vision_tower_answers_about_images(peer: Peer) -> None:
    ready = await peer.ready()
    assert ready.capabilities.images
    assert not ready.capabilities.embedding_width, "rows of embeddings are another option"
    peer.send(ASKED, replace(ASKED, stream=2), Tokenize(3, "r", ASKED.input))
    for stream in (1, 2):
        ended = await peer.terminal(stream)
        assert isinstance(ended, Finished)
        counted = await peer.expect(Tokenized)
        assert ended.usage.prompt_tokens == counted.count
    assert peer.tokens(1) == peer.tokens(2)
    assert peer.gauges().images_encoded == 1


@with_worker()
async def test_a_worker_without_one_refuses_images_by_name(peer: Peer) -> None:
    ready = await peer.ready()
    assert not ready.capabilities.images
    peer.send(ASKED)
    failed = await peer.terminal(1)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.field) == (ErrorCode.UNSUPPORTED, CAT.field)


@with_worker(images=True, faults=(Fault("raise", 1),))
async def test_a_part_that_fails_ends_its_request(peer: Peer) -> None:
    await peer.ready()
    peer.send(ASKED)
    failed = await peer.terminal(1)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.field) == (ErrorCode.STEP, CAT.field)


@with_worker(images=True, faults=(Fault("nan", PARTS),))
async def test_rows_that_are_not_finite_end_their_request(peer: Peer) -> None:
    await peer.ready()
    peer.send(ASKED)
    failed = await peer.terminal(1)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.field) == (ErrorCode.NOT_FINITE, CAT.field)
    peer.send(replace(ASKED, stream=2))
    assert isinstance(await peer.terminal(2), Finished)


def test_a_stream_goes_on_at_another_worker_with_the_rows_of_its_image() -> None:
    """Two workers with their links; the test passes the rows on, as the gateway does."""

    async def hand_over(source: Peer, target: Peer, tenant: str) -> int:
        source.send(ReadRows(1, 7, 1, 0, 512))
        read = await source.expect(Rows)
        assert min(read.tokens) < 0
        target.send(WriteRows(2, 7, tenant, 0, read.tokens, read.rows, read.digest))
        return (await target.expect(RowsWritten)).rows

    async def scenario() -> None:
        slow, ended = scripted(images=True, tokens_per_second=8.0), replace(ASKED, stream=2, tenant="a")
        async with service(slow) as source, service(scripted(images=True)) as target:
            await source.ready()
            await target.ready()
            source.send(LONG)
            await source.expect(Step, lambda step: bool(step.deltas))
            rows = await hand_over(source, target, "a")
            target.send(replace(ended, resume=tuple(source.tokens(1))), replace(ended, stream=3, tenant="b"))
            for stream in (2, 3):
                assert isinstance(await target.terminal(stream), Finished)
            assert source.tokens(1)[: 12 - len(target.tokens(2))] + target.tokens(2) == target.tokens(3)
            assert rows > 20
            assert target.gauges().images_encoded == 1, "for the other tenant"
            assert target.gauges().prefix_tokens == rows

    asyncio.run(scenario())


@with_worker(images=True, tokens_per_second=200.0)
async def test_a_client_that_leaves_ends_its_request(peer: Peer) -> None:
    await peer.ready()
    peer.send(LONG, Cancel(1))
    ended = await peer.terminal(1)
    assert isinstance(ended, Finished)
    assert ended.reason == "cancelled"
    peer.send(replace(ASKED, stream=2))
    assert isinstance(await peer.terminal(2), Finished)


@pytest.mark.parametrize("call", [PARTS - 1, PARTS + 6], ids=["encoding", "answer"])
def test_a_killed_worker_is_replaced_by_one_with_the_same_tokens(call: int) -> None:
    """The calls are the parts of the image, the prompt and the tokens of the answer."""

    async def answer(asked: Submit) -> list[int]:
        async with service(scripted(images=True)) as peer:
            await peer.ready()
            peer.send(asked)
            assert isinstance(await peer.terminal(1), Finished)
            return peer.tokens(1)

    async def scenario() -> None:
        async with worker(scripted(images=True, tokens_per_second=100.0, faults=(Fault("kill", call),))) as killed:
            await killed.ready()
            killed.send(ASKED)
            assert killed.ending is not None
            await asyncio.shield(killed.ending)
        delivered = killed.tokens(1)
        assert bool(delivered) == (call > PARTS)
        assert delivered + await answer(replace(ASKED, resume=tuple(delivered))) == await answer(ASKED)

    asyncio.run(scenario())
