"""One client that takes all places of resumable streams."""

import http.client
import json

from tests.attacks.answers.posts import COMPLETIONS, JSON, completion
from tests.attacks.server import HOST, AttackedServer

OWN_SERVER = True
"""Its streams are kept for ten minutes."""
KEPT = {"stream": True, "stream_options": {"resume_s": 600}, "max_tokens": 100}


def leave_stream(server: AttackedServer) -> tuple[int, str]:
    """Begin a resumable stream and leave it. The status, and the id of the stream."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    connection.request("POST", COMPLETIONS, completion(**KEPT), dict(JSON))
    response = connection.getresponse()
    response.read(1)
    response.close()
    connection.close()
    return response.status, response.headers.get("x-stream-id", "")


def test_streams_that_are_left_behind_do_not_lock_others_out(server: AttackedServer) -> None:
    statuses, streams = zip(*(leave_stream(server) for _ in range(540)), strict=True)
    assert set(statuses) == {200}, "the bound is 512"
    status, stream = leave_stream(server)
    assert status == 200, "another client's stream is kept"
    assert server.request("GET", f"/v1/streams/{stream}")[0] == 200
    gone = [
        answer for each in streams for status, answer in [server.request("GET", f"/v1/streams/{each}")] if status == 410
    ]
    assert len(gone) == 541 - 512
    assert {json.loads(answer)["error"]["code"] for answer in gone} == {"stream_dropped"}
