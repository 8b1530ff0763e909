"""Gate of failures for any runner: a failed request costs nobody else a cached prefix, and leaves no row behind.

Two tenants have a conversation each in the prefix cache while requests of a third one fail, in a prompt or in a decode
step, in a call of their own or beside another request. Both conversations then continue from their cached rows, with
the tokens of a cold run.
"""

from collections.abc import Callable

from structlog.testing import capture_logs

from tests.gate import alone
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.faults.faulty_runner import FaultyRunner
from workers.faults.plan import CallFault, Fault

POISON = 250
"""The token whose calls fail. Prompts and answers have it nowhere else."""


def run_failure_gate(make_runner: Callable[[], Runner], kind: CallFault, *, length: int = 50) -> None:
    """Run the gate with a runner of 4 slots and a vocabulary of at least 257 tokens. `kind` is "raise" or "nan"."""
    runner = make_runner()
    cold = {tenant: alone(runner, _turn(tenant, length)) for tenant in ("one", "two")}
    longer = {tenant: alone(runner, _turn(tenant, length, cold[tenant])) for tenant in cold}
    shared = alone(runner, _request(9, "three", 70, length))
    engine = BatchEngine(
        FaultyRunner(runner, [Fault(kind, calls=0, token=POISON)]),
        max_queue=8,
        step_tokens=1 << 20,
        prefixes=PrefixPolicy(min_tokens=8),
    )
    try:
        for tenant, tokens in cold.items():
            assert _run(engine, _turn(tenant, length))[0] == tokens
        beside = _fail(engine, length)
        assert beside == shared or (kind == "raise" and not beside), "a call that raises fails all of its sequences"
        for tenant, tokens in longer.items():
            got, cached = _run(engine, _turn(tenant, length, cold[tenant]))
            assert got == tokens, f"{tenant}: got {got}, alone {tokens}"
            expected = length + len(cold[tenant]) - 1
            chunk_end = expected if runner.capabilities.exact_rows else runner.capabilities.prefill_chunks[0]
            assert cached is not None
            assert cached >= chunk_end, f"{tenant}: {cached} cached tokens of {chunk_end}"
    finally:
        engine.close()


def _fail(engine: BatchEngine, length: int) -> list[int]:
    """Fail requests of a third tenant: two alone, one that has copied rows, and one beside another request.

    Returns the tokens of that one."""
    poison = tuple(range(110, 110 + length))
    failing = [
        EngineRequest(10, (*poison[:20], POISON, *poison[20:]), max_tokens=4, tenant="three"),
        EngineRequest(11, (*poison, POISON, 5), max_tokens=4, tenant="three"),
    ]
    with capture_logs():
        for request in failing:
            assert _run(engine, request) == ([], None)
        assert len(_run(engine, EngineRequest(12, poison, max_tokens=4, tenant="three"))[0]) == 4
        assert _run(engine, EngineRequest(13, (*poison, POISON, 6), max_tokens=4, tenant="three")) == ([], None)
        engine.submit(EngineRequest(14, (POISON, *poison), max_tokens=4, tenant="three"))
        return _run(engine, _request(9, "three", 70, length))[0]


def _turn(tenant: str, length: int, answer: list[int] | None = None) -> EngineRequest:
    """The first request of a conversation, or the one that continues its answer."""
    first = _request(1 if tenant == "one" else 2, tenant, 3 if tenant == "one" else 30, length)
    if answer is None:
        return first
    return EngineRequest(first.stream + 2, (*first.prompt, *answer, 4, 5), max_tokens=6, tenant=tenant)


def _request(stream: int, tenant: str, start: int, length: int) -> EngineRequest:
    return EngineRequest(stream, tuple(range(start, start + length)), max_tokens=6, tenant=tenant)


def _run(engine: BatchEngine, request: EngineRequest) -> tuple[list[int], int | None]:
    """The tokens of a request, and its cached tokens; none for one that failed."""
    engine.submit(request)
    tokens: list[int] = []
    cached = None
    while not engine.idle:
        result = engine.step()
        tokens += [token.token for token in result.tokens if token.stream == request.stream]
        cached = next((end.cached_tokens for end in result.ends if end.stream == request.stream), cached)
    return tokens, cached
