"""Gate of `LocalModel` for any runner: its ways to generate agree, and its counts are those of what it did."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.events import Delta, Finished
from protocol.request import Limits, Sampling
from workers.local_model import LocalModel, mixed_prompt

PROMPT = tuple(range(3, 45))
LIMITS = Limits(max_tokens=8)
SAMPLINGS = (Sampling(logprobs=1), Sampling(temperature=1.0, seed=3, logprobs=1))


def run_session_gate(model: LocalModel, table: NDArray[np.float32]) -> None:
    """Generate by each way, of tokens and of rows of the model's own table. Raises `AssertionError` when two differ."""
    for sampling in SAMPLINGS:
        whole = model.generate(PROMPT, sampling, LIMITS)
        deltas = list(model.stream(PROMPT, sampling, LIMITS))
        assert [isinstance(each, Finished) for each in deltas] == [False] * (len(deltas) - 1) + [True]
        assert tuple(token for each in deltas for token in each.tokens) == whole.tokens
        tokens = [model.prefill(PROMPT, sampling)]
        while len(tokens) < len(whole.tokens):
            tokens.append(model.decode_step() or 0)
        assert tuple(tokens) == whole.tokens
        mixed = mixed_prompt(PROMPT[:7], table[list(PROMPT[7:30])], PROMPT[30:])
        assert model.generate(mixed, sampling, LIMITS) == whole
        assert model.prefill(mixed, sampling) == whole.tokens[0]
    greedy = model.generate(PROMPT, SAMPLINGS[0], LIMITS)
    scored = model.score((*PROMPT, *greedy.tokens)).log_likelihoods[len(PROMPT) - 1 :]
    assert scored == pytest.approx([each.sampled.logprob for each in greedy.logprobs], abs=1e-4)
    _check_counts(model)


def _check_counts(model: LocalModel) -> None:
    before = model.stats()
    again = model.generate(PROMPT, limits=LIMITS)
    after = model.stats()
    assert (again.stats.prompt_tokens, again.stats.completion_tokens) == (len(PROMPT), 8)
    assert 0 < again.stats.cached_tokens < len(PROMPT), "it was sent before"
    assert again.stats.prefill_s > 0
    assert again.stats.decode_s > 0
    last = model.last_request
    assert last == again.stats
    assert after.requests - before.requests == 1
    assert after.completion_tokens - before.completion_tokens == 8
    assert after.cached_tokens - before.cached_tokens == again.stats.cached_tokens
    computed = len(PROMPT) - again.stats.cached_tokens
    assert after.prefill_tokens - before.prefill_tokens == computed
    assert after.memory["weights"] > 0
    stream = model.stream(PROMPT, limits=LIMITS)
    assert isinstance(next(stream), Delta)
    running = model.last_request
    stream.close()
    ended = model.last_request
    assert running is None
    assert ended is not None
    assert ended.completion_tokens >= 1
