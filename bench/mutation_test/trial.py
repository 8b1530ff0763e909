"""Verdicts on mutants: tests ran, and noticed the change or not."""

import time
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from bench.mutation_test.checkout import CheckoutCopy
from bench.mutation_test.mutant import Mutant
from bench.mutation_test.suites import Stages

MOST_DOUBTED = 5
"""Tests of a suite that may fail without a mutant, and pass alone."""
LIMIT_S, LIMIT_TIMES = 20.0, 5.0
"""A mutant whose tests take so much longer than without it hangs."""
BASELINE_LIMIT_S = 1800.0


class Outcome(StrEnum):
    NOTICED = "noticed"
    TIMED_OUT = "timed out"
    EQUIVALENT = "equivalent"
    SURVIVED = "survived"


@dataclass(frozen=True)
class MutantTrial:
    """The fate of a mutant."""

    mutant: Mutant
    outcome: Outcome
    reason: str = ""
    """The test that noticed it, or why it is equivalent."""


class SuiteFails(Exception):
    """Tests fail without any mutant, so that they can tell nothing."""


class TimeLimits:
    """Measures each stage of tests once without a mutant, which gives the time limit with one. Used by all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._locks: defaultdict[tuple[str, ...], Lock] = defaultdict(Lock)
        self._limits: dict[tuple[str, ...], float] = {}

    def of(self, stage: tuple[str, ...], copy: CheckoutCopy) -> float:
        """Return the limit in seconds. `copy` has no mutant. Raises `SuiteFails`."""
        with self._lock:
            lock = self._locks[stage]
        with lock:
            if stage not in self._limits:
                self._limits[stage] = LIMIT_S + LIMIT_TIMES * _measure(stage, copy)
            return self._limits[stage]


def try_mutant(mutant: Mutant, stages: Stages, copy: CheckoutCopy, limits: TimeLimits) -> MutantTrial:
    """Run the stages of tests in order until one notices the mutant. Raises `SuiteFails`."""
    for stage in stages:
        limit_s = limits.of(stage, copy)
        with copy.mutated(mutant):
            trial = _try_stage(mutant, stage, copy, limit_s)
        if trial is not None:
            return trial
    return MutantTrial(mutant, Outcome.SURVIVED)


def _try_stage(mutant: Mutant, stage: tuple[str, ...], copy: CheckoutCopy, limit_s: float) -> MutantTrial | None:
    """Return a trial if the stage notices the mutant.

    A test has noticed it when it also fails alone: on a busy machine a test over sockets may fail by itself.
    """
    doubted: list[str] = []
    while True:
        run = copy.test(stage, limit_s, doubted)
        if run.passed:
            return None
        if run.timed_out:
            return MutantTrial(mutant, Outcome.TIMED_OUT, " ".join(stage))
        if not run.failed or run.failed in doubted or not copy.test([run.failed], limit_s).passed:
            return MutantTrial(mutant, Outcome.NOTICED, run.failed or f"pytest ended with status {run.status}")
        doubted.append(run.failed)


def _measure(stage: tuple[str, ...], copy: CheckoutCopy) -> float:
    """Return how long a stage takes without a mutant, but for tests that fail in it and pass alone."""
    doubted: list[str] = []
    while True:
        began = time.monotonic()
        run = copy.test(stage, BASELINE_LIMIT_S, doubted)
        if run.passed:
            return time.monotonic() - began
        again = len(doubted) < MOST_DOUBTED and run.failed and run.failed not in doubted
        if not again or not copy.test([run.failed], BASELINE_LIMIT_S).passed:
            raise SuiteFails(f"{' '.join(stage)}: tests fail without a mutant\n{run.output}")
        doubted.append(run.failed)
