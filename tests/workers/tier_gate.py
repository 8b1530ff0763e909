"""Gate of the prefix tier for any runner: tokens after rows that another worker has saved are those of a cold run."""

import random
from collections.abc import Callable
from pathlib import Path

from tests.gate import SAMPLINGS, alone, replace_seed
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.engine.tier.prefix_tier import PrefixTier
from workers.prefix_store.store import PrefixStore

BLOCK_ROWS = 16
PROMPT, MAX_TOKENS, DELIVERED = 42, 12, 8


def run_tier_gate(make_runner: Callable[[], Runner], directory: Path) -> None:
    """Serve requests of several tenants by one worker, and again by another one, as after the loss of the first: with
    some tokens of each answer. Then requests that share the beginning of a prompt.

    Raises `AssertionError` when a stream differs from its cold run in any token, or takes other rows than there are.
    """
    cold = make_runner()
    randomness = random.Random(3)

    def some(count: int) -> tuple[int, ...]:
        return tuple(randomness.randrange(cold.capabilities.vocab_size) for _ in range(count))

    prompt, expected = some(PROMPT), {}
    for stream, sampling in enumerate(SAMPLINGS[:5]):
        request = EngineRequest(stream, prompt, replace_seed(sampling, stream), MAX_TOKENS, tenant=str(stream))
        expected[request] = alone(cold, request)
    further = EngineRequest(99, (*prompt[:36], *some(9)), max_tokens=4, tenant="0")
    of_further = alone(cold, further)
    state_bytes = cold.capabilities.state_bytes  # one is at the last end of a block within the prompt
    cold.close()

    first = engine_with_tier(make_runner(), directory)
    assert [serve(first, request) for request in expected] == [(tokens, 0) for tokens in expected.values()]
    first.close()
    second = engine_with_tier(make_runner(), directory)
    for request, tokens in expected.items():
        resumed = EngineRequest(
            request.stream,
            prompt,
            request.sampling,
            MAX_TOKENS,
            tenant=request.tenant,
            resume=tuple(tokens[:DELIVERED]),
        )
        assert serve(second, resumed) == (tokens[DELIVERED:], 32 if state_bytes else 48)
    assert second.gauges().prefix_hits == len(expected)
    second.close()
    third = engine_with_tier(make_runner(), directory)
    assert serve(third, further) == (of_further, 32)
    third.close()


def engine_with_tier(runner: Runner, directory: Path, max_bytes: int = 1 << 30) -> BatchEngine:
    """Return an engine whose tier has small blocks."""
    tier = PrefixTier(PrefixStore(directory, max_bytes), runner, block_rows=BLOCK_ROWS)
    states = 16 * (runner.capabilities.state_bytes + OVERHEAD_BYTES)
    prefixes = PrefixPolicy(min_tokens=1)
    return BatchEngine(runner, max_queue=64, step_tokens=64, prefixes=prefixes, tier=tier, state_cache_bytes=states)


def serve(engine: BatchEngine, request: EngineRequest) -> tuple[list[int], int]:
    """Serve one request, and wait until its rows are saved. Returns its tokens and how many tokens were cached."""
    engine.submit(request)
    tokens: list[int] = []
    cached = -1
    while not engine.idle:
        result = engine.step()
        assert not result.failures, result.failures
        tokens += [token.token for token in result.tokens]
        cached = next((end.cached_tokens for end in result.ends), cached)
    engine.settle()
    return tokens, cached
