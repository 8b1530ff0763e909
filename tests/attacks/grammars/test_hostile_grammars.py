"""Hostile grammars: each is refused with its field, or its answer is bounded, and other streams do not notice."""

import http.client
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.attacks.answers.posts import COMPLETIONS, JSON, completion
from tests.attacks.grammars.hostile import HOSTILE
from tests.attacks.server import AttackedServer, attacked_server
from workers.grammar.runaway_limit import EACH_S, FREE

STREAMED = 400
"""Tokens of the stream beside the attacks."""
CLIENTS = ("", *HOSTILE)
"""Clients with a key: the one of the stream, and one for each grammar, as new ones are held back after runaways."""


def worker_pids(server: AttackedServer) -> list[int]:
    workers = json.loads(server.request("GET", "/admin/workers", headers=headers(""))[1])["workers"]
    return [worker["pid"] for worker in workers]


def tokens(server: AttackedServer, **fields: Any) -> list[int]:
    body = completion(max_tokens=STREAMED, temperature=0, return_token_ids=True, **fields)
    status, answer = server.request("POST", COMPLETIONS, body, headers(""))
    assert status == 200, answer
    found: list[int] = json.loads(answer)["choices"][0]["token_ids"]
    return found


def headers(client: str) -> dict[str, str]:
    return JSON | {"authorization": f"Bearer k{CLIENTS.index(client)}"}


class Stream(threading.Thread):
    """Another client, who repeats a request until the attacks are over."""

    def __init__(self, server: AttackedServer, expected: list[int]) -> None:
        super().__init__()
        self._server = server
        self._expected = expected
        self._over = threading.Event()
        self.answers = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        while not self._over.is_set():
            try:
                if (found := tokens(self._server)) != self._expected:
                    self.wrong.append(found)
            except (AssertionError, OSError, ValueError) as error:
                self.wrong.append(error)
            self.answers += 1

    def end(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedServer]:
    """One server for all attacks: what one of them leaves behind would show in the next."""
    folder: Path = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text("".join(f"c{index}:k{index}\n" for index in range(len(CLIENTS))))
    keys.chmod(0o600)
    with attacked_server(folder, "--api-keys-file", str(keys)) as server:
        pids = worker_pids(server)
        yield server
        assert worker_pids(server) == pids, "no grammar ends a worker"


@pytest.fixture(scope="module")
def expected(shared: AttackedServer) -> list[int]:
    return tokens(shared)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_harms_nobody(shared: AttackedServer, expected: list[int], name: str) -> None:
    hostile = HOSTILE[name]
    stream = Stream(shared, expected)
    stream.start()
    try:
        body = completion(max_tokens=12, seed=1, **hostile.fields)
        status, answer = shared.request("POST", COMPLETIONS, body, headers(name))
    finally:
        stream.end()
    assert stream.answers
    assert stream.wrong == []
    if not hostile.refusal:
        error = json.loads(answer).get("error", {})
        assert status == 200 or (status, error["code"]) == (400, "invalid_request"), answer[:500]
        return
    assert status == 400, answer[:500]
    error = json.loads(answer)["error"]
    assert (error["code"], error["param"]) == ("invalid_request", hostile.field)
    assert hostile.refusal in error["message"]
    assert len(error["message"]) < 5000


def test_the_check_process_does_not_grow(shared: AttackedServer) -> None:
    """Neither it nor the worker keeps what hostile grammars took."""
    for name, hostile in HOSTILE.items():
        status, _ = shared.request("POST", COMPLETIONS, completion(max_tokens=2, **hostile.fields), headers(name))
        assert status in (200, 400), name
    for pid in worker_pids(shared):
        worker = psutil.Process(pid)
        children = worker.children(recursive=True)
        assert len(children) <= 2, "the check process and its child"
        for process in (worker, *children):
            assert process.memory_info().rss < 1 << 30


RUNAWAYS = [
    {"guided_json": {"properties": {f"p{at}": HOSTILE["a common multiple"].fields["guided_json"]}}}
    for at in range(FREE)
]
"""As many as a client may send."""


def send_as(server: AttackedServer, key: str, **fields: Any) -> tuple[int, str | None, Any]:
    """Send a completion with a key: its status, `Retry-After` and answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    sent = JSON | {"authorization": f"Bearer {key}"}
    connection.request("POST", COMPLETIONS, completion(max_tokens=2, **fields), sent)
    response = connection.getresponse()
    answer = response.status, response.getheader("retry-after"), json.loads(response.read())
    connection.close()
    return answer


def test_keys_that_nobody_checks_make_no_new_clients(tmp_path: Path) -> None:
    with attacked_server(tmp_path) as server:
        for index, runaway in enumerate(RUNAWAYS):
            assert send_as(server, f"made-up-{index}", **runaway)[0] == 400
        assert send_as(server, "another", guided_regex="[d-f]{3}")[0] == 429


def test_a_client_is_held_back_after_runaways_and_no_other_one(tmp_path: Path) -> None:
    """Neither for the grammars that it used before, nor with another salt for its cache."""
    known, new = {"guided_regex": "[a-c]{3}"}, {"guided_regex": "[d-f]{3}"}
    keys = tmp_path / "keys"
    keys.write_text("attacker:k1\nother:k2\n")
    keys.chmod(0o600)
    with attacked_server(tmp_path, "--api-keys-file", str(keys)) as server:
        send = partial(send_as, server)
        assert send("k1", **known)[0] == 200
        assert [send("k1", cache_salt=str(at), **each)[0] for at, each in enumerate(RUNAWAYS)] == [400] * FREE
        status, retry_after, held = send("k1", cache_salt="new", **new)
        assert (status, held["error"]["code"], held["error"]["param"]) == (429, "overloaded", "guided_regex")
        assert retry_after is not None
        assert EACH_S - 10 < int(retry_after) <= EACH_S
        assert send("k1", **known)[0] == send("k1")[0] == send("k2", **new)[0] == 200
