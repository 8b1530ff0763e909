"""Adapters of the hub that requests load: which repositories, and what becomes of a failure."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from gateway.admin.adapters import adapter_sources
from gateway.admin.adapters.adapter_sources import AdapterFetchFailed
from gateway.repository_names import check_repository, is_allowed, repository_of
from gateway.settings import GatewaySettings, GatewaySettingsError
from tests.gateway.admin.adapters.test_adapter_files import make_adapter
from tests.gateway.admin.adapters.test_adapter_routes import serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("text", "repository"),
    [
        ("org/one", "org/one"),
        ("org/one@v1", "org/one"),
        ("org/one@refs/pr/1", "org/one"),
        ("org/one@../x", None),
        ("org/..", None),
        ("/org/one", None),
        ("../one", None),
        ("org/one/two", None),
        ("org/one:Q4", None),
        ("org/" + "n" * 92, "org/" + "n" * 92),
        ("org/" + "n" * 93, None),
        ("org/one@" + "r" * 255, "org/one"),
        ("org/one@" + "r" * 256, None),
        ("org/one\n", None),
        ("org--one/two", None),
        ("org/one.", None),
        ("org/one.git", None),
        ("", None),
    ],
)
def test_a_hub_id_is_a_repository_and_perhaps_a_revision(text: str, repository: str | None) -> None:
    assert repository_of(text) == repository


@pytest.mark.parametrize(
    "pattern", ["org", "a--b/*", "org/*/x", "*/one", "org/o*", "../*", "org/one@v1", "", "o" * 95 + "/*"]
)
def test_other_patterns_are_refused_by_the_setting(pattern: str) -> None:
    with pytest.raises(GatewaySettingsError, match=r"allow_lora_repos: .* is not ORG/NAME, ORG/\* or \*"):
        GatewaySettings(allow_lora_repos=(pattern,))


def test_patterns_allow_a_repository_an_organization_or_all() -> None:
    for pattern in ("*", "org/*", "org/one"):
        check_repository(pattern)
    allowed = {pattern: is_allowed("org/one", pattern) for pattern in ("*", "org/*", "org/one", "or/*", "org/on")}
    assert [pattern for pattern, is_one in allowed.items() if is_one] == ["*", "org/*", "org/one"]


def fetching(folder: Path, asked: list[str]) -> Callable[[str], Awaitable[Path]]:
    """Fetches as the hub's cache keeps it: files of a snapshot are links to blobs of its repository."""

    async def fetch(name: str) -> Path:
        asked.append(name)
        if name.endswith("@gone"):
            raise AdapterFetchFailed("not found: no such revision", missing=True)
        if name.endswith("@later"):
            raise AdapterFetchFailed("no network: try again", unavailable=True)
        if name.endswith("@never"):
            await anyio.sleep_forever()
        snapshot, blobs = folder / "models--org--one/snapshots/abc", folder / "models--org--one/blobs"
        if not snapshot.exists():
            for file in make_adapter(snapshot).iterdir():
                blobs.mkdir(exist_ok=True)
                file.rename(blobs / file.name)
                file.symlink_to(blobs / file.name)
        if name.endswith("@evil"):
            (snapshot / "adapter_model.safetensors").unlink()
            (snapshot / "adapter_model.safetensors").symlink_to("/etc/hostname")
        return snapshot

    return fetch


async def test_repositories_that_are_allowed_are_fetched_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lora").mkdir()
    asked: list[str] = []
    monkeypatch.setattr(adapter_sources, "FETCH_S", 0.01)
    fetch = fetching(tmp_path, asked)
    async with serving(tmp_path / "lora", fetch, allow_lora_repos=("org/*",)) as server:
        for path, status, text in (
            ("other/one", 404, "`allow_lora_repos` does not allow the repository 'other/one'"),
            ("org/one@gone", 404, "lora_path: not found: no such revision"),
            ("org/one@later", 503, "lora_path: no network"),
            ("org/one@never", 503, "has not arrived within 0.01 s"),
        ):
            refused = await server.load("sql", path)
            assert (refused.status_code, text in refused.text) == (status, True), refused.text
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.load, "sql", "org/one@v1")
            await server.until_asked(1)
            server.answer(0)
        assert asked == ["org/one@gone", "org/one@later", "org/one@never", "org/one@v1"]
        assert server.asked[0].paths[1].endswith("models--org--one/snapshots/abc")
        assert "is a link to a file" in (await server.load("bad", "org/one@evil")).text
        make_adapter(tmp_path / "lora/org/one", b"local")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.load, "local", "org/one")
            await server.until_asked(2)
            server.answer(1)
        assert len(asked) == 5, "a directory comes first"


async def test_without_the_setting_nothing_is_fetched(tmp_path: Path) -> None:
    asked: list[str] = []
    async with serving(tmp_path, fetching(tmp_path, asked)) as server:
        refused = await server.load("sql", "org/one")
        assert (refused.status_code, "`allow_lora_repos` does not allow" in refused.text, asked) == (404, True, [])
