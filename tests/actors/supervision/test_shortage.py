"""Errors that count as a shortage that may pass."""

import errno
import os

import pytest

from actors.process.child import ChildProcess, SpawnFailed
from actors.process.descriptors import NoDescriptors
from actors.process.threads import NoThreads
from actors.supervision.local import PASSING, is_shortage
from actors.transport.endpoint import EndpointError, LocalEndpoint


@pytest.mark.parametrize("number", sorted(PASSING), ids=lambda number: errno.errorcode[number])
def test_an_error_of_the_system_or_one_raised_from_it(number: int) -> None:
    error = EndpointError("no folder can hold it")
    error.__cause__ = OSError(number, os.strerror(number))
    assert is_shortage(error)
    assert is_shortage(error.__cause__)


@pytest.mark.parametrize("cause", [NoDescriptors, NoThreads])
def test_too_few_descriptors_or_threads(cause: type[Exception]) -> None:
    error = EndpointError("no socket can be made")
    error.__cause__ = cause("fewer than 16 are left")
    assert is_shortage(error)


def test_what_time_does_not_mend_is_none() -> None:
    assert not is_shortage(None)
    assert not is_shortage(ValueError("no errno"))
    with pytest.raises(SpawnFailed) as absent:
        ChildProcess.spawn(["/no/such/program"], lambda line: None, lambda: None)
    assert not is_shortage(absent.value)
    with pytest.raises(EndpointError) as nowhere:
        LocalEndpoint(["/no/such/folder"])
    assert isinstance(nowhere.value.__cause__, FileNotFoundError)
    assert not is_shortage(nowhere.value)
