"""Mutants that no test can notice, each with the reason."""

from dataclasses import dataclass

from bench.mutation_test.mutant import Mutant


@dataclass(frozen=True)
class Equivalent:
    """A change after which the module behaves the same."""

    module: str
    where: str
    before: str
    """The changed lines, as `Mutant.change` returns them."""
    after: str
    reason: str


EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "gateway/routing/circuit_breaker.py",
        "Breaker.__init__",
        "self._until = 0.0",
        "self._until = 1.0",
        "it is read only after a failure has set it",
    ),
    Equivalent(
        "gateway/routing/sequence.py",
        "LiveSequence.__init__",
        "self._context = 0",
        "self._context = 1",
        "it is read only after a worker's context has taken its place",
    ),
    Equivalent(
        "gateway/routing/sequence.py",
        "LiveSequence.__init__",
        "self.since_replay = 0",
        "self.since_replay = 1",
        "it is read only after a recorded failure has set it to 0",
    ),
    Equivalent(
        "gateway/routing/worker_handle.py",
        "WorkerHandle.__init__",
        "self._closed = -1",
        "self._closed = -2",
        "any negative number stands for no incarnation",
    ),
    Equivalent(
        "workers/engine/chunking.py",
        "_split_remainder",
        "split_cost = 0",
        "split_cost = 1",
        "the last part covers the rest exactly, and its cost replaces this one",
    ),
    *(
        Equivalent(
            "gateway/routing/quarantine.py",
            "_digest",
            before,
            after,
            "any constant leaves the field out of the comparison",
        )
        for before, after in (
            ("prompt = replace(prompt, now=0, images=images)", "prompt = replace(prompt, now=1, images=images)"),
            (
                "return blake2b(_encode((model, prompt, replace(sampling, seed=0))), digest_size=16).digest()",
                "return blake2b(_encode((model, prompt, replace(sampling, seed=1))), digest_size=16).digest()",
            ),
        )
    ),
    Equivalent(
        "gateway/routing/quarantine.py",
        "_digest",
        "return blake2b(_encode((model, prompt, replace(sampling, seed=0))), digest_size=16).digest()",
        "return blake2b(_encode((model, prompt, replace(sampling, seed=0))), digest_size=17).digest()",
        "a digest of either size is practically unique",
    ),
    Equivalent(
        "gateway/routing/admission/request_admission.py",
        "RequestAdmission._submit",
        "self._admitted += 1",
        "self._admitted += 2",
        "only the order of these numbers matters",
    ),
    *(
        Equivalent(
            "workers/engine/runner.py",
            "check_rows",
            before,
            after,
            "rows that fail this fast check get the whole one, which decides",
        )
        for before, after in (
            ("0 <= row.slot < slots", "1 <= row.slot < slots"),
            ("0 <= row.slot < slots", "0 < row.slot < slots"),
            ("and 0 <= row.token < vocab", "and 1 <= row.token < vocab"),
            ("and 0 <= row.token < vocab", "and 0 < row.token < vocab"),
            ("and 0 <= row.start <= written[row.slot]", "and 1 <= row.start <= written[row.slot]"),
            ("and 0 <= row.start <= written[row.slot]", "and 0 < row.start <= written[row.slot]"),
            ("and 0 <= row.start <= written[row.slot]", "and 0 <= row.start < written[row.slot]"),
            ("and row.position >= 0", "and row.position > 0"),
            ("and row.position >= 0", "and row.position >= 1"),
        )
    ),
    *(
        Equivalent(
            "workers/engine/slot_allocation.py",
            "SlotAllocator._best_retained",
            "best: tuple[int, int, CachedRows | None] = (-1, 0, None)",
            f"best: tuple[int, int, CachedRows | None] = ({slot}, 0, None)",
            "the slot is not read without cached rows",
        )
        for slot in ("(1)", "-2")
    ),
    Equivalent(
        "workers/engine/kv_slots.py",
        "SlotTable._vacate",
        "self._reserved[slot] = 0",
        "pass",
        "the next holder of the slot sets it before it is read",
    ),
    *(
        Equivalent("workers/engine/sequence.py", "EngineSequence", before, after, reason)
        for before, after, reason in (
            ("slot: int = -1", "slot: int = -2", "any negative number stands for no slot"),
            ("last_token: int = -1", "last_token: int = -2", "it is read only after a token was accepted"),
            ("last_token: int = -1", "last_token: int = (1)", "it is read only after a token was accepted"),
        )
    ),
    Equivalent(
        "workers/engine/chunking.py",
        "_split_remainder",
        "covered.append((rest, next(size for size in sizes if size >= rest) + CALL_TOKENS))",
        "covered.append((rest, next(size for size in sizes if size >= rest) - CALL_TOKENS))",
        "each split ends with a chunk that covers the rest, so that all costs that are compared change alike",
    ),
    Equivalent(
        "gateway/fleet/hand_over.py",
        "HandOver.__init__",
        "self._given_until = 0.0",
        "self._given_until = 1.0",
        "it is read only after a successor has set it",
    ),
    Equivalent(
        "gateway/fleet/hand_over.py",
        "HandOver._problem",
        "if self._successor is not None and anyio.current_time() < self._given_until:",
        "if self._successor is not None and anyio.current_time() <= self._given_until:",
        "the clock does not stop at one moment",
    ),
    Equivalent(
        "actors/supervision/restart_policy.py",
        "FailureRecord._delay_after_kills",
        "return min(policy.first_delay_s * 2.0 ** min(self._killed_starts - 1, 64), most_s)",
        "return min(policy.first_delay_s * 2.0 ** min(self._killed_starts - 1, 65), most_s)",
        "both are over the longest delay",
    ),
    Equivalent(
        "workers/engine/logits_processors.py",
        "",
        "_SPARE = 64",
        "_SPARE = 65",
        "the arrays grow when they are full",
    ),
    Equivalent(
        "workers/engine/slot_reset.py",
        "",
        "NO_STREAM = -1",
        "NO_STREAM = (1)",
        "a slot table does not compare streams, and nothing reads the holder of a borrowed slot",
    ),
    Equivalent(
        "workers/engine/slot_reset.py",
        "",
        "NO_STREAM = -1",
        "NO_STREAM = -2",
        "a slot table does not compare streams, and nothing reads the holder of a borrowed slot",
    ),
)


def reason_of(mutant: Mutant, source: bytes) -> str:
    """Return why a mutant of this source is equivalent; empty if it is not known to be."""
    before, after = mutant.change(source)
    for known in EQUIVALENT:
        if (known.module, known.where, known.before, known.after) == (mutant.module, mutant.where, before, after):
            return known.reason
    return ""
