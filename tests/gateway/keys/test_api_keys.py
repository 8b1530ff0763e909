"""Named API keys: the format of their file, and what happens to requests when it changes."""

import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from gateway.app import create_app
from gateway.key_weights import Priority
from gateway.keys.api_keys import ApiKeys, KeyChange
from gateway.keys.key_file import MAX_FILE_BYTES, MAX_KEY_BYTES, MAX_KEYS, ApiKeysInvalid
from gateway.keys.record import KeyLimits, make_key, make_record
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from tests.gateway.harness.asgi import clients
from tests.gateway.harness.serving import COMPLETION, events, serving

pytestmark = pytest.mark.anyio

NO_OPERATIONS = 404
"""An authorized request for an operation finds no route, as these gateways have no fleet."""


def key_file(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "keys"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return file


def name_of(keys: ApiKeys, key: str) -> str | None:
    found = keys.find(key.encode())
    return None if found is None else found.name


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_a_line_is_a_name_and_a_key(tmp_path: Path, mode: int) -> None:
    text = "# teams\n\nalice:a:b#c\n  bob \t b\u00e9 \r\ncarol: c\nalice a2"
    keys = ApiKeys(GatewaySettings(api_key="d", api_keys_file=str(key_file(tmp_path, text, mode))))
    given = {"a:b#c": "alice", "a2": "alice", "b\u00e9": "bob", "c": "carol", "d": "default", "a": None, "": None}
    assert {key: name_of(keys, key) for key in given} == given
    assert keys


def test_without_keys_none_is_needed() -> None:
    assert not ApiKeys(GatewaySettings())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alice", "line 1: a line is NAME:KEY"),
        ("alice:", "line 1: a line is NAME:KEY"),
        ("\nalice a b", "line 2: a line is NAME:KEY"),
        (":a", "line 1: a line is NAME:KEY"),
        ("-a:a", "line 1: the name is not"),
        ("a" * 65 + ":a", "line 1: the name is not"),
        ("a\u00e9:a", "line 1: the name is not"),
        ("default:a", "is the name of a key of the settings"),
        ("admin:a", "is the name of a key of the settings"),
        ("a:x\nb:x", "line 2: 'a' has the same key"),
        ("a:single", "'default' has the same key"),
        ("a:root", "this is the admin key"),
        ("a:" + "k" * (MAX_KEY_BYTES + 1), f"the bound of {MAX_KEY_BYTES} bytes"),
        ("".join(f"a:{number}\n" for number in range(MAX_KEYS + 1)), f"more than {MAX_KEYS} keys"),
        ("#" * (MAX_FILE_BYTES + 1), f"the bound of {MAX_FILE_BYTES} bytes"),
        (b"a:\xff", "not UTF-8"),
    ],
)
def test_a_file_that_is_not_a_list_of_keys_is_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    file = key_file(tmp_path, text)
    with pytest.raises(ApiKeysInvalid, match=words) as refusal:
        ApiKeys(GatewaySettings(api_key="single", admin_key="root", api_keys_file=str(file)))
    assert "root" not in str(refusal.value).removeprefix(str(file))


def test_a_file_without_a_key_does_not_open_the_server(tmp_path: Path) -> None:
    file = str(key_file(tmp_path, "# none\n"))
    with pytest.raises(ApiKeysInvalid, match="has no key"):
        ApiKeys(GatewaySettings(api_keys_file=file))
    assert ApiKeys(GatewaySettings(api_keys_file=file, api_key="a"))


def test_a_reload_without_a_key_closes_the_server(tmp_path: Path) -> None:
    file = key_file(tmp_path, "a:b")
    keys = ApiKeys(GatewaySettings(api_keys_file=str(file)))
    file.write_text("")
    assert keys.adopt(keys.read()) == KeyChange((), (), ("a",))
    assert keys
    assert name_of(keys, "b") is None


def test_a_record_is_looked_up_by_the_digest_of_its_key(tmp_path: Path) -> None:
    key, root = make_key(), make_key()
    limits = KeyLimits(max_concurrent=2)
    lines = [
        make_record("alice", key, limits).line(),
        "bob:b",
        make_record("ops", root, KeyLimits(), admin=True).line(),
    ]
    keys = ApiKeys(GatewaySettings(api_keys_file=str(key_file(tmp_path, "\n".join(lines)))))
    found = keys.find(key.encode())
    assert found is not None
    assert (found.name, found.limits) == ("alice", limits)
    assert [name_of(keys, each) for each in ("b", root, "alice")] == ["bob", None, None]
    admin = keys.find_admin(root.encode())
    assert admin is not None
    assert (admin.name, keys.find_admin(key.encode()), keys.administers) == ("ops", None, True)


async def test_keys_of_the_file_administer_alone(tmp_path: Path) -> None:
    key, root = make_key(), make_key()
    text = (
        make_record("alice", key, KeyLimits()).line() + "\n" + make_record("ops", root, KeyLimits(), admin=True).line()
    )
    async with serving(api_keys_file=str(key_file(tmp_path, text)), api_key="d") as served:
        statuses = {
            given: (
                (await served.client.get("/v1/models", headers=bearer(given))).status_code,
                (await served.client.get("/admin/workers", headers=bearer(given))).status_code,
                (await served.client.post("/admin/restart", json={}, headers=bearer(given))).status_code,
            )
            for given in (key, root, "d")
        }
    assert statuses == {key: (200, 200, 401), root: (401, 200, NO_OPERATIONS), "d": (200, 200, 401)}


@pytest.mark.parametrize("admin", [False, True])
async def test_a_key_that_has_expired_opens_nothing(tmp_path: Path, admin: bool) -> None:
    keys = {name: make_key() for name in ("now", "later")}
    now = datetime.now(UTC)
    expiries = {"now": now, "later": now + timedelta(hours=1)}
    lines = [make_record(name, keys[name], KeyLimits(expires=expiries[name]), admin=admin).line() for name in keys]
    file = key_file(tmp_path, "\n".join([*lines, "other:o"]))
    path = "/admin/workers" if admin else "/v1/models"
    async with serving(api_keys_file=str(file)) as served:
        refused = await served.client.get(path, headers=bearer(keys["now"]))
        assert refused.status_code == 401
        assert "'now', has expired" in refused.json()["error"]["message"]
        assert (await served.client.get(path, headers=bearer(keys["later"]))).status_code == 200


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602, 0o644])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ApiKeysInvalid, match=f"open to others .mode 0{mode:o}"):
        ApiKeys(GatewaySettings(api_keys_file=str(key_file(tmp_path, "a:b", mode))))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = key_file(tmp_path, "a:b")
    os.chown(file, 12345, -1)
    with pytest.raises(ApiKeysInvalid, match="belongs to another user"):
        ApiKeys(GatewaySettings(api_keys_file=str(file)))


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, words in {
        "pipe": "not a regular file",
        ".": "not a regular file",
        "absent": "; `baton keys create` makes it",
    }.items():
        with pytest.raises(ApiKeysInvalid, match=words):
            ApiKeys(GatewaySettings(api_keys_file=str(tmp_path / name)))


def test_a_bad_file_changes_no_key(tmp_path: Path) -> None:
    file = key_file(tmp_path, "alice:a\nbob:b")
    keys = ApiKeys(GatewaySettings(api_keys_file=str(file)))
    file.write_text("alice")
    with pytest.raises(ApiKeysInvalid):
        keys.adopt(keys.read())
    assert name_of(keys, "a") == "alice"
    file.write_text("alice:a2\ncarol:c")
    assert keys.adopt(keys.read()) == KeyChange(("alice", "carol"), ("alice", "carol"), ("alice", "bob"))
    assert [name_of(keys, key) for key in ("a", "a2", "b", "c")] == [None, "alice", None, "carol"]


async def test_a_reload_needs_a_file_and_the_key_of_the_administration(tmp_path: Path) -> None:
    async with serving() as served:
        answer = await served.client.post("/admin/keys/reload", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "keys_not_reloaded")
    file = key_file(tmp_path, "alice:a")
    async with serving(api_keys_file=str(file)) as served:
        for path in ("/admin/keys/reload", "/admin/restart"):
            answer = await served.client.post(path, json={}, headers=bearer("a"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_key_needed")
            assert (await served.client.post(path, json={})).status_code == 401
        assert (await served.client.get("/admin/workers", headers=bearer("a"))).status_code == 200
    async with serving(api_keys_file=str(file), api_key="d") as served:
        assert (await served.client.post("/admin/restart", json={}, headers=bearer("d"))).status_code == NO_OPERATIONS
        answer = await served.client.post("/admin/keys/reload", json={}, headers=bearer("d"))
        assert answer.json() == {"keys": {"names": ["alice", "default"], "added": [], "removed": []}}


async def test_a_reload_drops_no_stream_and_a_removed_key_resumes_none(tmp_path: Path) -> None:
    file = key_file(tmp_path, "alice:a\nbob:b")
    body = COMPLETION | {"stream": True, "stream_options": {"resume_s": 60}}
    begun = anyio.Event()
    paths: list[str] = []
    async with serving(api_keys_file=str(file), admin_key="root") as served:
        (client, worker) = (served.client, served.worker)
        ended: list[object] = []

        async def stream() -> None:
            async with client.stream("POST", "/v1/completions", json=body, headers=bearer("a")) as response:
                paths.append(f"/v1/streams/{response.headers['x-stream-id']}")
                begun.set()
                ended.extend(await events(response))

        async with anyio.create_task_group() as group:
            group.start_soon(stream)
            (submit,) = await worker.wait_submits(1)
            worker.token(submit.stream, "one", 1)
            await begun.wait()
            file.write_text("bob:b\n")
            answer = await client.post("/admin/keys/reload", json={}, headers=bearer("root"))
            assert answer.json()["keys"] == {"names": ["bob"], "added": [], "removed": ["alice"]}
            worker.token(submit.stream, "two", 2)
            worker.finish(submit.stream)
        assert ended[-1] == "[DONE]"
        (path,) = paths
        statuses = [(await client.get(path, headers=bearer(key))).status_code for key in ("a", "b", "root")]
        assert statuses == [401, 404, 401]
        assert (await client.delete(path, headers=bearer("a"))).status_code == 401


@pytest.mark.parametrize(
    ("path", "authorization", "name"),
    [
        ("/v1/models", "Bearer a", "alice"),
        ("/v1/models", "Basic eDph", "alice"),
        ("/v1/models", "Bearer d", "default"),
        ("/v1/models", "Bearer root", ""),
        ("/v1/models", "Bearer alice", ""),
        ("/admin/workers", "Bearer root", "admin"),
        ("/admin/workers", "Bearer a", "alice"),
        ("/health/live", "Bearer wrong", ""),
    ],
)
async def test_the_name_of_the_key_is_in_the_scope(tmp_path: Path, path: str, authorization: str, name: str) -> None:
    file = key_file(tmp_path, "alice:a")
    settings = GatewaySettings(api_key="d", admin_key="root", api_keys_file=str(file))
    app = create_app(Router(settings), settings)
    async with clients(app) as opened:
        connection = opened.open("GET", path, authorization=authorization)
        await connection.ended.wait()
    assert connection._scope["baton.key_name"] == name
    assert (connection.status == 401) is (not name and path != "/health/live")


async def test_the_priority_class_of_the_key_is_in_the_scope(tmp_path: Path) -> None:
    key = make_key()
    text = make_record("alice", key, KeyLimits(priority=Priority.LOW)).line()
    settings = GatewaySettings(api_key="d", api_keys_file=str(key_file(tmp_path, text)))
    app = create_app(Router(settings), settings)
    found = []
    async with clients(app) as opened:
        for given in (key, "d", "wrong"):
            connection = opened.open("GET", "/v1/models", authorization=f"Bearer {given}")
            await connection.ended.wait()
            found.append(connection._scope["baton.priority"])
    assert found == [Priority.LOW, Priority.NORMAL, Priority.NORMAL]


async def test_the_class_of_a_key_is_its_weight_in_the_shares_of_the_server(tmp_path: Path) -> None:
    def text(priority: Priority) -> str:
        records = [
            make_record("alice", make_key(), KeyLimits(priority=priority)),
            make_record("bob", make_key(), KeyLimits(priority=Priority.LOW)),
        ]
        return "\n".join(record.line() for record in records)

    file = key_file(tmp_path, text(Priority.HIGH))
    settings = GatewaySettings(api_keys_file=str(file), key_weights=("bob=3",))
    keys = ApiKeys(settings)
    shares = Router(settings, keys.weight)._placement.queue.turns("tiny").shares
    for name in ("alice", "bob", ""):
        shares.enter(name)

    def turns(count: int) -> Counter[str]:
        served: Counter[str] = Counter()
        for _ in range(count):
            chosen = shares.next()
            assert chosen is not None
            shares.charge(chosen, 12.0)
            served[chosen] += 1
        return served

    assert turns(16) == {"alice": 8, "bob": 6, "": 2}, "the settings give bob another weight than his class"
    file.write_text(text(Priority.LOW))
    keys.adopt(keys.read())
    assert turns(17) == {"alice": 1, "bob": 12, "": 4}
