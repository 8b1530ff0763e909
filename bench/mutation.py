"""Mutation test of the decision code: small changes of it, and how many of them the tests notice.

    python bench/mutation.py [--count 200] [--seed 12] [--jobs 2] [--threshold 95] [--modules PATTERN] [--quick]

Takes a random sample of all small changes (mutants) of the scheduler, the slots, the router, the resumable streams, the
fleet and the supervision of workers: a comparison's bound, `and` for `or`, plus for minus, a constant increased, a
statement deleted, a condition negated and others (bench/mutation_test/operators.py). Each change is made in a copy of
the checkout, where the tests of that module run (bench/mutation_test/suites.py), the fast ones first, until one fails
or hangs. Equal seeds take equal samples of equal code. 200 mutants take about an hour on two cores, and less with
--quick, which leaves out the slowest tests, so that its share is a lower bound.

Prints the counts of each module, and what survived as diffs: a test is missing, or the code is redundant, or the mutant
is equivalent and belongs into bench/mutation_test/equivalent.py, with the reason. Ends with status 1 if less than
--threshold percent of the mutants that are not equivalent were noticed.

Neither mutmut 3.8 nor cosmic-ray 8.7 takes a random sample. The first one skips decorated functions, and the second one
deletes no statements and has one test command for all modules.
"""

import argparse
import fnmatch
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness.command_line import at_least, command_line, not_negative, parsed
from bench.mutation_test.checkout import CheckoutCopy
from bench.mutation_test.equivalent import reason_of
from bench.mutation_test.mutant import Mutant
from bench.mutation_test.report import noticed_share, survivors, table
from bench.mutation_test.search import find_mutants
from bench.mutation_test.suites import Stages, find_stages
from bench.mutation_test.trial import MutantTrial, Outcome, SuiteFails, TimeLimits, try_mutant

ROOT = Path(__file__).resolve().parent.parent


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--count", type=at_least(1), default=200, help="mutants to sample")
    parser.add_argument("--seed", type=int, default=12, help="of the sample")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="mutants to test at once")
    parser.add_argument("--threshold", type=not_negative, default=95.0, help="percent of mutants to be noticed")
    parser.add_argument("--modules", default="*", metavar="PATTERN", help="only modules whose paths match")
    parser.add_argument("--quick", action="store_true", help="leave out the slowest tests: some more mutants survive")
    smoke = {"count": 2, "jobs": 1, "modules": "workers/engine/chunking.py"}
    return parsed(parser, words, smoke=smoke)


def read_modules(pattern: str) -> dict[str, bytes]:
    """Return the sources of all modules of decision code whose paths match."""
    return {module: (ROOT / module).read_bytes() for module in find_stages(ROOT) if fnmatch.fnmatch(module, pattern)}


def sample(sources: Mapping[str, bytes], count: int, seed: int) -> list[Mutant]:
    """Return a random sample of the mutants of all modules."""
    mutants = [mutant for module, source in sources.items() for mutant in find_mutants(module, source)]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def run(
    mutants: Sequence[Mutant], sources: Mapping[str, bytes], stages: Mapping[str, Stages], jobs: int
) -> list[MutantTrial]:
    """Try mutants with the tests of their modules, `jobs` at once. Raises `SuiteFails` if tests fail without one."""
    idle: SimpleQueue[CheckoutCopy] = SimpleQueue()
    limits = TimeLimits()

    def trial(mutant: Mutant) -> MutantTrial:
        source = sources[mutant.module]
        if reason := reason_of(mutant, source):
            return MutantTrial(mutant, Outcome.EQUIVALENT, reason)
        copy = idle.get()
        try:
            found = try_mutant(mutant, stages[mutant.module], copy, limits)
        finally:
            idle.put(copy)
        place = f"{mutant.module}:{mutant.line(source)}"
        print(f"{found.outcome}: {place} ({mutant.operator}) {found.reason}", file=sys.stderr, flush=True)
        return found

    with tempfile.TemporaryDirectory(prefix="m-", ignore_cleanup_errors=True) as folder:
        copies = [CheckoutCopy(ROOT, Path(folder) / str(job)) for job in range(jobs)]
        for copy in copies:
            idle.put(copy)
        with ThreadPoolExecutor(jobs) as executor:
            try:
                return list(executor.map(trial, mutants))
            except BaseException:
                executor.shutdown(wait=False, cancel_futures=True)
                for copy in copies:
                    copy.stop()
                raise


def main() -> int:
    args = arguments()
    sources = read_modules(args.modules)
    if not sources:
        print(f"--modules {args.modules}: no module of bench/mutation_test/suites.py matches", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the tests that run, too
    began = time.monotonic()
    try:
        stages = find_stages(ROOT, quick=args.quick)
        trials = run(sample(sources, args.count, args.seed), sources, stages, args.jobs)
    except SuiteFails as error:
        print(error, file=sys.stderr)
        return 2
    if text := survivors(trials, sources):
        print(f"{text}\n")
    share, minutes = noticed_share(trials), (time.monotonic() - began) / 60
    print(f"{table(trials)}\n\nnoticed {share:.1f} % of {len(trials)} mutants, seed {args.seed}, {minutes:.1f} min")
    return 0 if share >= args.threshold else 1


if __name__ == "__main__":
    sys.exit(main())
