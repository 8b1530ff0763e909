"""Each failure of a hub has its own cause, and a text with the next step."""

import errno
import socket

import pytest

from tests.workers.hub.conftest import TINY
from tests.workers.hub.hub_server import Answer, HubServer, hub_error
from workers.hub.download import Download
from workers.hub.errors import HubCause, HubError, explain

HTML = 200, {"content-type": "text/html"}, b"<html>a captive portal</html>"
OTHER_JSON = 200, {"content-type": "application/json"}, b'{"status": "ok"}'


@pytest.mark.parametrize(
    ("failure", "cause", "step"),
    [
        (hub_error(404, "RepoNotFound", "Repository not found"), HubCause.NOT_FOUND, "check the name"),
        (
            hub_error(401, "RepoNotFound", "Repository not found"),
            HubCause.UNAUTHORIZED,
            "`hf auth login`, or set HF_TOKEN",
        ),
        (hub_error(401, "", "Invalid credentials in Authorization header"), HubCause.UNAUTHORIZED, "correct HF_TOKEN"),
        (hub_error(403, "", "your token has no such permission"), HubCause.UNAUTHORIZED, "an account that may read it"),
        (hub_error(403, "GatedRepo", "Access is restricted"), HubCause.GATED, "accept it on http"),
        (
            hub_error(404, "RevisionNotFound", "Invalid rev id"),
            HubCause.REVISION_NOT_FOUND,
            "lists its branches and tags",
        ),
        (hub_error(403, "", "Access to this resource is disabled."), HubCause.DISABLED, "choose another model"),
        (hub_error(429, "", "", **{"retry-after": "30"}), HubCause.RATE_LIMITED, "try again in 30 s"),
        (hub_error(429), HubCause.RATE_LIMITED, "try again in some minutes"),
        (hub_error(503), HubCause.HUB_FAILED, "answered 503 for org/tiny; try again later"),
        (hub_error(404), HubCause.NOT_A_HUB, "check HF_ENDPOINT"),
        (HTML, HubCause.NOT_A_HUB, "check HF_ENDPOINT"),
        (OTHER_JSON, HubCause.NOT_A_HUB, "check HF_ENDPOINT"),
    ],
    ids=lambda value: value.value if isinstance(value, HubCause) else "",
)
def test_an_answer_of_the_hub_has_a_cause(
    hub: HubServer, tiny: Download, failure: Answer, cause: HubCause, step: str
) -> None:
    hub.failure = failure
    with pytest.raises(HubError) as failed:
        tiny.plan()
    assert failed.value.cause is cause
    assert str(failed.value).startswith(f"{cause}: ")
    assert step in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_file_that_the_hub_refuses_has_a_cause(hub: HubServer, tiny: Download) -> None:
    """The license of a gated model is checked where its files are, too."""
    plan = tiny.plan()
    tiny.run(plan)
    hub.repos[TINY.repo]["config.json"] += b" "
    plan = tiny.plan()
    hub.failure = hub_error(403, "GatedRepo", "Access is restricted")
    with pytest.raises(HubError) as failed:
        tiny.run(plan)
    assert failed.value.cause is HubCause.GATED


def test_a_hub_that_cannot_be_reached_has_a_cause(tiny: Download, hub: HubServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        download = Download(TINY, f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(
            HubError, match=r"cannot be reached for org/tiny .*Connection refused.*check the network"
        ) as one:
            download.plan()
    with pytest.raises(HubError, match="cannot be reached for org/tiny") as other:
        Download(TINY, "http://no-such-host.invalid").plan()
    assert (one.value.cause, other.value.cause) == (HubCause.NO_NETWORK, HubCause.NO_NETWORK)


def test_an_incomplete_cache_without_a_network_has_a_cause(tiny: Download, hub: HubServer) -> None:
    plan = tiny.plan()
    (tiny.run(plan) / "tokenizer.json").unlink()
    hub.failure = hub_error(503)
    with pytest.raises(
        HubError, match=r"^incomplete: .*tokenizer\.json.*`baton pull org/tiny` downloads what is"
    ) as failed:
        tiny.run(plan)
    assert failed.value.cause is HubCause.INCOMPLETE


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), HubCause.DISK_FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), HubCause.DISK_FULL),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), HubCause.NOT_WRITABLE),
        (OSError(errno.EROFS, "Read-only file system"), HubCause.NOT_WRITABLE),
        (OSError("Consistency check failed: file should be of size 2 but has size 1"), HubCause.INCOMPLETE),
        (TimeoutError("timed out"), HubCause.NO_NETWORK),
        (RuntimeError("what nobody knows"), HubCause.UNKNOWN),
    ],
    ids=lambda value: value.value if isinstance(value, HubCause) else "",
)
def test_an_error_of_this_machine_has_a_cause(error: Exception, cause: HubCause) -> None:
    found = explain(error, TINY, "https://huggingface.co", "/cache")
    assert found.cause is cause
    wrapped = ValueError("wrapped")
    wrapped.__cause__ = error
    if cause in (HubCause.DISK_FULL, HubCause.NOT_WRITABLE):
        assert explain(wrapped, TINY, "https://huggingface.co", "/cache").cause is cause
