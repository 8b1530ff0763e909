"""Rates from the times of steps, and cold starts with a scripted engine and clock."""

from collections.abc import Sequence

import pytest

from bench.measurement.rounds import RefusedError
from bench.peers.peer import MIN_STEPS, FirstSeconds, Prompts, cold_start, decode_rate, prefill_rate


def test_only_steps_in_which_all_decode_count() -> None:
    alone = [(9.0, 1), (9.0, 0)]
    together = [(5.0, 4)] + [(0.5, 4)] * MIN_STEPS  # the first may compute the last prompt
    assert decode_rate([*alone, *together, *alone], 4) == 8.0


def test_a_figure_of_few_steps_is_none() -> None:
    steps = [(0.5, 4)] * MIN_STEPS
    with pytest.raises(RefusedError, match=f"only {MIN_STEPS - 1} steps in which all 4 sequences decode"):
        decode_rate(steps, 4)


def test_a_prompt_in_chunks_is_timed_to_its_first_token() -> None:
    assert prefill_rate([(0.5, 0), (0.25, 0), (0.25, 1), (7.0, 1)], 100) == 100.0


def test_a_prompt_without_a_token_has_no_rate() -> None:
    with pytest.raises(RefusedError, match="no token"):
        prefill_rate([(0.5, 0)], 100)


def test_prompts_differ_and_come_again_with_the_same_seed() -> None:
    prompts = Prompts(1)
    first = prompts.batch(2, 16)
    assert first != prompts.batch(2, 16)
    assert first == Prompts(1).batch(2, 16)
    assert [len(prompt) for prompt in first] == [16, 16]


class Scripted:
    """An engine that loads in 2 s, and takes a second for each call."""

    def __init__(self, clock: list[float]) -> None:
        self.calls: list[tuple[int, int]] = []
        self.closed = False
        self._clock = clock
        clock[0] += 2.0

    def decode(self, streams: int, prompt: int, tokens: int) -> float:
        raise NotImplementedError

    def prefill(self, length: int) -> float:
        raise NotImplementedError

    def complete(self, prompt: Sequence[int], tokens: int) -> list[int]:
        raise NotImplementedError

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> int:
        self.calls.append((len(prompts), tokens))
        self._clock[0] += 1.0
        if len(self.calls) > 10:
            raise RefusedError("no more")
        return len(prompts) * tokens

    def close(self) -> None:
        self.closed = True


def test_a_cold_start_counts_from_the_start_of_the_process() -> None:
    clock, sessions = [10.0], []

    def start() -> Scripted:
        sessions.append(Scripted(clock))
        return sessions[0]

    found = cold_start(start, streams=4, prompt=8, tokens=5, seconds=2.5, clock=lambda: clock[0])
    assert found == FirstSeconds(first_token_s=3.0, tokens_per_s=20.0)
    assert sessions[0].calls == [(1, 1), (4, 5), (4, 5), (4, 5)]
    assert sessions[0].closed


def test_an_engine_that_fails_cold_is_closed() -> None:
    clock, sessions = [0.0], []

    def start() -> Scripted:
        sessions.append(Scripted(clock))
        return sessions[0]

    with pytest.raises(RefusedError, match="no more"):
        cold_start(start, streams=1, prompt=8, tokens=5, seconds=60.0, clock=lambda: clock[0])
    assert sessions[0].closed
