"""Streams over slow and lossy links: nothing is lost or doubled, and the tokens are those of a good link."""

from pathlib import Path
from typing import Any

import pytest

from bench.networks.byte_link import ByteLink
from bench.networks.impairment import Impairment
from models import builtin_path
from tests.gateway.harness.real import launch
from tests.gateway.networks.linked import RATE, linked, linked_by_packets

pytestmark = pytest.mark.anyio

IMPAIRMENTS = {
    "50 ms and jitter": Impairment(delay_s=0.05, jitter_s=0.02),
    "200 ms": Impairment(delay_s=0.2),
    "1 % lost": Impairment(delay_s=0.005, loss=0.01),
    "5 % lost": Impairment(delay_s=0.005, loss=0.05),
    "reordered": Impairment(delay_s=0.02, reorder=0.25),
    "1 Mbit/s": Impairment(delay_s=0.005, bits_per_s=1e6),
}
MANY = 400
"""Tokens of the real model, so that a reset at the first event comes in their middle: a slow link, or a busy machine,
makes events of many tokens."""
BAD = Impairment(delay_s=0.1, jitter_s=0.05, loss=0.05, bits_per_s=1e6)


async def test_tokens_are_those_of_an_undisturbed_link(tmp_path: Path) -> None:
    """The worker joins over a bad link, and stays the same incarnation all the time: none of this counts as a lost
    link."""
    async with linked_by_packets(tmp_path, launch("near", rate=RATE), impairment=BAD) as made:
        reference = await made.ask()
        with made.joining():
            await made.door.ready("far")
            for impairment in IMPAIRMENTS.values():
                made.taken.clear()
                made.link.set(impairment)
                assert await made.ask_both() == [reference] * 2
                assert {("near", 1), ("far", 1)} <= set(made.taken)
            assert made.door.status("far").incarnation == 1
        assert made.door.rejected() == {}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)  # with an empty cache of graphs
async def test_a_real_model_computes_the_same_over_a_bad_link_and_after_its_loss(
    tmp_path: Path, cache_dir: Path
) -> None:
    """It joins over a bad link without packets, as where there are no namespaces. The worker keeps its model when the
    link is reset in the middle of a stream, joins again and continues it."""
    pytest.importorskip("iree.runtime")
    model: dict[str, Any] = {
        "backend": "iree",
        "model_path": str(builtin_path()),
        "context": 512,
        "cache_dir": str(cache_dir),
    }
    async with linked(tmp_path, impairment=BAD) as made:
        assert isinstance(made.link, ByteLink)
        with made.joining(**model):
            pid = (await made.door.ready("far")).pid
            made.link.set(Impairment())
            reference = await made.ask(max_tokens=MANY)
            made.link.set(IMPAIRMENTS["5 % lost"])
            assert await made.ask(max_tokens=MANY) == reference
            assert (made.door.status("far").incarnation, made.door.rejected()) == (1, {})
            made.link.set(IMPAIRMENTS["50 ms and jitter"])
            assert await made.ask(made.link.reset, event=1, speculate=False, max_tokens=MANY) == reference
            status = await made.door.ready("far", 2)
            assert (status.incarnation, status.pid) == (2, pid)
