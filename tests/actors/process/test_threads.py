"""Threads: that a process which can start none is not aborted by a library."""

import subprocess
import sys
import threading

import pytest

from actors.process.threads import LINK, check_threads

UNDER_A_LIMIT = """
import asyncio, os, resource
from actors.transport.endpoint import EndpointError, LocalEndpoint
from actors.transport.link import Link

async def main():
    if os.geteuid() == 0:
        os.setuid(54321)  # root has no limit
    before, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
    with LocalEndpoint(["/tmp"]) as endpoint:
        try:
            Link.bind(endpoint.address, lambda frames: None)
        except EndpointError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_NPROC, (before, most))
        Link.bind(endpoint.address, lambda frames: None).close()
        print("made")

asyncio.run(main())
"""


def test_that_some_can_be_started_is_tried_and_leaves_none() -> None:
    before = threading.active_count()
    check_threads(LINK)
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the limit of processes does not count threads")
def test_a_link_is_refused_where_no_thread_can_be_started_and_made_once_one_can() -> None:
    """libzmq would abort the process, and with it all of its streams."""
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refusal, made = done.stdout.splitlines()
    assert refusal.endswith("fewer than 4 threads can be started: the limit of processes is reached")
    assert made == "made"
