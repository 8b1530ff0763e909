"""A machine without /dev/shm, as in a small container."""

import pytest

from tests.attacks.environment.surrounded import needs_namespaces, surrounded
from tests.gateway.harness.serving import COMPLETION

GONE = {
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    "full": "mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs /dev/shm",
}


@needs_namespaces
@pytest.mark.parametrize("mount", GONE.values(), ids=GONE)
def test_it_serves_without_shared_memory(mount: str) -> None:
    with surrounded(mounts=[mount]) as gateway:
        assert gateway.client.post("/v1/completions", json=COMPLETION).status_code == 200
