"""Gate of embeddings in prompts for any runner: rows of the model's own table give what their tokens give."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from protocol.request import Sampling
from workers.engine.embeddings.prompt_embeddings import PromptEmbeddings
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.sampling.logprobs import RowLogprobs

LENGTH, MAX_TOKENS = 70, 10
"""More than two chunks."""
SAMPLINGS = (Sampling(logprobs=2), Sampling(temperature=1.0, seed=7, top_p=0.9, logprobs=2))

Answer = list[tuple[int, RowLogprobs | None]]


def embedded(request: EngineRequest, table: NDArray[np.float32], places: Iterable[int]) -> EngineRequest:
    """Return the request with rows of the table in place of some tokens."""
    places = sorted(set(places))
    embeddings = PromptEmbeddings(np.stack([table[request.prompt[at]] for at in places]))
    prompt = list(request.prompt)
    for at, number in zip(places, embeddings.ids, strict=True):
        prompt[at] = number
    return replace(request, prompt=tuple(prompt), embeddings=embeddings)


def serve(engine: BatchEngine, requests: Sequence[EngineRequest]) -> tuple[list[Answer], list[int]]:
    """Return the tokens of requests that run together, with their log-probabilities, and the rows that each reused."""
    for request in requests:
        engine.submit(request)
    answers: dict[int, Answer] = {request.stream: [] for request in requests}
    reused: dict[int, int] = {}
    while not engine.idle:
        step = engine.step()
        assert not step.failures, step.failures
        reused |= {start.stream: start.cached_tokens for start in step.starts}
        for token in step.tokens:
            answers[token.stream].append((token.token, token.logprobs))
    return list(answers.values()), [reused[request.stream] for request in requests]


def engine_of(runner: Runner, *, prefixes: bool) -> BatchEngine:
    return BatchEngine(runner, max_queue=16, step_tokens=256, prefixes=PrefixPolicy(enabled=prefixes))


def run_embeddings_gate(runner: Runner, table: NDArray[np.float32]) -> None:
    """Serve prompts of tokens, of rows, and of both: alone, beside others, with reused rows, and resumed.

    `table` is the model's own, as the device rounds it. Raises `AssertionError` when an answer differs in any token or
    any bit of a log-probability, or rows of a cache are taken for others.
    """
    randomness = random.Random(5)
    engine = engine_of(runner, prefixes=False)

    def some(count: int) -> tuple[int, ...]:
        return tuple(randomness.randrange(len(table)) for _ in range(count))

    requests = [EngineRequest(at, some(LENGTH), each, MAX_TOKENS) for at, each in enumerate(SAMPLINGS)]
    expected = [serve(engine, [request])[0][0] for request in requests]
    mixes = [range(LENGTH), range(5, 41), [LENGTH - 1]]
    for request, answer in zip(requests, expected, strict=True):
        for places in mixes:
            assert serve(engine, [embedded(request, table, places)])[0] == [answer]
    others = [EngineRequest(9 + at, some(9 + at), SAMPLINGS[0], 4) for at in range(2)]
    together = [embedded(requests[0], table, mixes[0]), others[0], embedded(requests[1], table, mixes[1]), others[1]]
    capabilities = runner.capabilities
    if capabilities.slots >= len(together):
        assert serve(engine, together)[0][::2] == expected
    resumed = embedded(requests[1], table, mixes[0])
    delivered = tuple(token for token, _ in expected[1][:4])
    assert serve(engine, [replace(resumed, resume=delivered)])[0] == [expected[1][4:]]
    if capabilities.exact_rows:
        _reuse(engine_of(runner, prefixes=True), requests[0], expected[0], table)


def _reuse(engine: BatchEngine, request: EngineRequest, expected: Answer, table: NDArray[np.float32]) -> None:
    """Rows of a cache are reused for equal rows of embeddings of the same tenant, and for nothing else."""
    whole = embedded(request, table, range(LENGTH))
    assert serve(engine, [whole]) == ([expected], [0])
    assert serve(engine, [replace(request, stream=20)]) == ([expected], [0])
    answers, (reused,) = serve(engine, [replace(whole, stream=21)])
    assert answers == [expected]
    assert 32 <= reused < LENGTH
    assert serve(engine, [replace(whole, stream=22, tenant="other")]) == ([expected], [0])
    changed = table.copy()
    changed[request.prompt[40]] += 1.0
    answers, (reused,) = serve(engine, [replace(embedded(request, changed, range(LENGTH)), stream=23)])
    assert reused <= request.prompt.index(request.prompt[40])


def embedding_table(checkpoint: Path) -> NDArray[np.float32]:
    """Return the rows of a checkpoint's table of embeddings."""
    with safe_open(checkpoint / "model.safetensors", framework="np") as file:
        table: NDArray[np.float32] = file.get_tensor("model.embed_tokens.weight").astype(np.float32)
    return table
