"""Slots for very long contexts: addresses, not memory; elements of the cache beyond 32 bits; and equal tokens."""

from contextlib import closing
from pathlib import Path

import psutil

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.sampled import sampled
from tests.workers.iree.conftest import Load
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.runner import IreeRunner
from workers.sampling.sample_spec import SampleSpec

SLOTS = 64
LONG = 1 << 20
SEEDED = Sampling(temperature=0.9, seed=3)
TOKENS = tuple(range(5, 55))


def generated(runner: IreeRunner, slot: int) -> list[int]:
    """Return the tokens after a prompt in one slot."""
    tokens = sampled(runner.prefill([Chunk(slot, TOKENS, 0, 0)], [SampleSpec(SEEDED, len(TOKENS))]))
    for at in range(len(TOKENS), len(TOKENS) + 8):
        tokens += sampled(runner.decode([DecodeRow(slot, tokens[-1], at, at, SampleSpec(SEEDED, at + 1))]))
    return tokens


def test_a_cache_of_many_long_slots_takes_addresses_only_and_gives_the_same_tokens(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, max_positions=LONG)
    with closing(load(path)) as short:
        expected = generated(short, 0)
    before = psutil.Process().memory_info()
    long = load(path, slots=SLOTS, context=LONG)
    try:
        assert long._buffers.kv[0].window is not None
        assert long._buffers.kv[0].window.size > 1 << 32
        assert generated(long, 0) == generated(long, SLOTS - 1) == expected
        after = psutil.Process().memory_info()
        assert after.vms - before.vms > 16 << 30
        assert after.rss - before.rss < 1 << 30
        long.reset(SLOTS - 1)
    finally:
        long.close()
