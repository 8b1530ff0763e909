"""The descriptors that a gateway keeps from its connections."""

import pytest

from gateway.fleet.descriptors import OWN, REMOTE_WORKER, WORKER, Descriptors


@pytest.mark.parametrize(
    ("limit", "workers", "remote", "kept", "remote_most"),
    [
        (1 << 20, 1, 0, OWN + WORKER, 0),
        (1 << 20, 2, 1056, OWN + 2 * WORKER + 1056 * REMOTE_WORKER, 1056),
        (1024, 1, 1056, 512, (512 - OWN - WORKER) // REMOTE_WORKER),
        (2 * (OWN + WORKER) + 1, 1, 0, OWN + WORKER, 0),
        (2 * (OWN + WORKER) - 2, 1, 0, OWN + WORKER - 1, 0),
        (64, 1, 1056, 32, 1),
    ],
)
def test_half_of_them_are_for_connections_at_least(
    limit: int, workers: int, remote: int, kept: int, remote_most: int
) -> None:
    plan = Descriptors.plan(limit, workers, remote)
    assert (plan.kept, plan.first_kept, plan.remote_workers) == (kept, limit - kept, remote_most)


def test_the_documented_numbers_are_kept() -> None:
    """`docs/operations/limits.md` states them."""
    assert Descriptors.plan(1 << 20, 3, 5).kept == 64 + 3 * 24 + 5 * 16
