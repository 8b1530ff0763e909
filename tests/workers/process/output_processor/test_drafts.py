"""Steps in which sequences get several tokens: the frames say the same as those of single ones."""

from typing import Any

import pytest

from protocol.request import Sampling
from tests.workers.process.output_processor.stepped_worker import Worker, submit

AA = "ab" * 12
STOPS: dict[str, dict[str, Any]] = {
    "length": {"max_tokens": 30},
    "a stop string": {"max_tokens": 60, "stop": ("aab", "bba")},
    "a stop string that is kept": {"max_tokens": 60, "stop": ("abab",), "keep_stop": True},
    "a stop token": {"max_tokens": 60, "stop_ids": (98,), "min_tokens": 9},
    "log-probabilities": {"max_tokens": 30, "sampling": Sampling(temperature=1.0, seed=3, logprobs=2)},
    "resumed": {"max_tokens": 30, "resume": (97, 98, 97)},
}


def outcome(drafts: bool, **fields: Any) -> tuple[Worker, tuple[Any, ...]]:
    worker = Worker(drafts=drafts, alphabet=(97, 97, 97, 98), context=128)
    worker.submit(submit(1, AA, **fields), submit(2, AA + "a", **fields))
    worker.run()
    said = [
        (
            worker.tokens(stream),
            worker.text(stream),
            [each for delta in worker.deltas(stream) for each in delta.logprobs],
            worker.finished(stream).reason,
            worker.finished(stream).stop,
            worker.finished(stream).usage.prompt_tokens,
            worker.finished(stream).usage.completion_tokens,
        )
        for stream in (1, 2)
    ]
    return worker, tuple(said)


@pytest.mark.parametrize("fields", STOPS.values(), ids=STOPS)
def test_frames_say_the_same(fields: dict[str, Any]) -> None:
    drafted, said = outcome(True, **fields)
    assert said == outcome(False, **fields)[1]
    assert max(len(delta.tokens) for stream in (1, 2) for delta in drafted.deltas(stream)) > 2
    assert not drafted.runner.violations


def test_a_stop_string_within_a_draft_ends_the_text_and_the_count_there() -> None:
    worker = Worker(drafts=True, alphabet=(97,), context=128)
    worker.submit(submit(1, "a" * 20, max_tokens=90, stop=("a" * 9,)))
    worker.run()
    assert (worker.text(1), worker.finished(1).reason) == ("", "stop")
    assert worker.finished(1).usage.completion_tokens == 9
    assert worker.engine.idle


def test_an_answer_without_drafts_gets_single_tokens() -> None:
    worker = Worker(drafts=True, alphabet=(97,), context=128)
    worker.submit(submit(1, "a" * 20, max_tokens=20, speculate=False))
    worker.run()
    assert max(len(delta.tokens) for delta in worker.deltas(1)) == 2, "the first one, and that of the same step"
