"""Descriptors: that a process which has none left is not aborted by a library."""

import os
import resource
import subprocess
import sys

import pytest

from actors.process.descriptors import LINK, NoDescriptors, check_free, raise_limit

FEW = 80


def test_that_some_are_free_is_tried_and_costs_none() -> None:
    before = os.listdir("/dev/fd")
    check_free(LINK)
    assert os.listdir("/dev/fd") == before


def in_a_process_with(limit: int, program: str, soft: int | None = None) -> str:
    """Return the output of a program under a limit of descriptors."""
    lead = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({soft or limit}, {limit}))\n"
    done = subprocess.run([sys.executable, "-c", lead + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    program = (
        "from actors.process.descriptors import raise_limit\n"
        "print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert in_a_process_with(200, program, soft=100).split() == ["200", "200", "200"]
    assert in_a_process_with(200, program).split() == ["200", "200", "200"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        assert raise_limit() == soft


LINKS = """
import asyncio, os
from actors.process.descriptors import NoDescriptors, check_free
from actors.transport.endpoint import EndpointError, LocalEndpoint
from actors.transport.link import Link

async def made(free):
    with LocalEndpoint() as endpoint:
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            for each in held[:free]:
                os.close(each)
        try:
            Link.bind(endpoint.address, lambda frames: None).close()
            return True
        except EndpointError as error:
            assert "file descriptors are left" in str(error), error
            return False
        finally:
            for each in held[free:]:
                os.close(each)

async def main():
    await asyncio.sleep(0)
    print(*[free for free in range(24) if await made(free)])

asyncio.run(main())
"""


def test_a_link_is_refused_where_libzmq_would_abort_the_process() -> None:
    assert in_a_process_with(FEW, LINKS).split() == [str(free) for free in range(LINK, 24)]


def test_too_few_are_a_typed_error() -> None:
    program = """
import os
from actors.process.descriptors import NoDescriptors, check_free
used = len(os.listdir("/dev/fd")) - 1
check_free(80 - used)
try:
    check_free(81 - used)
except NoDescriptors as error:
    print(error)
"""
    assert "file descriptors are left: Too many open files" in in_a_process_with(FEW, program)
    with pytest.raises(NoDescriptors):
        check_free(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
