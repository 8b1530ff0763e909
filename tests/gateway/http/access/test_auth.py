"""Keys that read the state of the workers, and keys that change it."""

import pytest

from tests.gateway.harness.serving import serving

pytestmark = pytest.mark.anyio

THROUGH = 404
"""There are no operations here, so that an authorized request finds no route."""


@pytest.mark.parametrize(
    ("api_key", "admin_key", "given", "look", "change"),
    [
        ("", "", None, 200, THROUGH),
        ("a", "", None, 401, 401),
        ("a", "", "a", 200, THROUGH),
        ("", "b", None, 200, 401),
        ("", "b", "b", 200, THROUGH),
        ("a", "b", None, 401, 401),
        ("a", "b", "a", 200, 401),
        ("a", "b", "b", 200, THROUGH),
    ],
)
async def test_the_admin_key_is_needed_to_change_something(
    api_key: str, admin_key: str, given: str | None, look: int, change: int
) -> None:
    headers = {"authorization": f"Bearer {given}"} if given else {}
    async with serving(api_key=api_key, admin_key=admin_key) as served:
        assert (await served.client.get("/admin/workers", headers=headers)).status_code == look
        assert (await served.client.post("/admin/restart", headers=headers, json={})).status_code == change


@pytest.mark.parametrize(
    ("name", "status", "look"),
    [
        ("localhost:1", THROUGH, 200),
        ("127.0.0.1", THROUGH, 200),
        ("[::1]:8000", THROUGH, 200),
        ("evil.example", 403, 403),
        ("10.0.0.1", 403, 200),
        ("[", 403, 403),
    ],
)
async def test_without_a_key_only_this_machine_changes_something_under_its_own_name(
    name: str, status: int, look: int
) -> None:
    async with serving() as served:
        answer = await served.client.post("/admin/restart", headers={"host": name}, json={})
        assert answer.status_code == status
        assert (await served.client.get("/admin/workers", headers={"host": name})).status_code == look


async def test_without_a_key_nobody_changes_something_from_elsewhere() -> None:
    async with serving(host="0.0.0.0") as served:
        answer = await served.client.post("/admin/restart", json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_key_needed")
    async with serving(host="0.0.0.0", admin_key="b") as served:
        key = {"authorization": "Bearer b"}
        assert (await served.client.post("/admin/restart", headers=key, json={})).status_code == THROUGH


@pytest.mark.parametrize("header", ["forwarded", "via", "x-forwarded-for", "x-real-ip"])
async def test_without_a_key_nobody_changes_something_through_a_proxy(header: str) -> None:
    async with serving() as served:
        answer = await served.client.post("/admin/restart", headers={"host": "127.0.0.1", header: "10.0.0.1"}, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_key_needed")
