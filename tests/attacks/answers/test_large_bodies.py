"""Bodies within the bounds of bytes that take long to decode, or to pass on to a worker: refused or served, at once."""

import json

import pytest

from tests.attacks.answers.bodies import BODIES
from tests.attacks.answers.posts import JSON
from tests.attacks.answers.probing import Probing
from tests.attacks.server import AttackedServer


@pytest.mark.parametrize("name", BODIES)
def test_no_body_holds_the_event_loop(server: AttackedServer, name: str) -> None:
    path, made = BODIES[name]
    body = made()
    with Probing(server) as probing:
        statuses = set()
        for _ in range(3):
            status, answer = server.request("POST", path, body, JSON)
            assert status in (400, 413, 429), answer[:500]
            assert json.loads(answer)["error"]["message"]
            statuses.add(status)
    assert len(statuses) == 1
    assert probing.failed == 0
