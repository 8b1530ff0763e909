"""A model of the hub that is not on this machine when the server starts."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog.testing

from cli.config.errors import CommandFailed
from cli.config.served_models import ServedModels
from cli.config.settings import Settings
from cli.config.several import hub_fetch, hub_model
from cli.config.several.hub_fetch import fetch, fetch_adapter
from cli.config.sources import load
from gateway.admin.adapters.adapter_sources import AdapterFetchFailed
from gateway.fleet.launch import LaunchRefused
from gateway.models.terms import ModelTerms, ModelUnavailable
from protocol.hub_id import HubId
from tests.checkpoints import make_checkpoint
from tests.workers.hub.hub_server import HubServer
from workers.hub.download import Download
from workers.hub.errors import HubCause, HubError
from workers.process.spec import WorkerSpec

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_settings")]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with one model. This process and its children ask it, and have an empty cache."""
    server = HubServer()
    server.add("org/tiny", make_checkpoint(tmp_path / "published", dtype="bfloat16", max_positions=131_072))
    with server.serve():
        for name, value in {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": ""}.items():
            monkeypatch.setenv(name, value)
        # `huggingface_hub` reads these variables when it is imported.
        folder = tmp_path / "home" / "hub"
        monkeypatch.setattr(
            hub_model, "Download", lambda model, projector: Download(model, server.url, folder, projector=projector)
        )
        yield server


def settings(*models: str, rest: str = "") -> Settings:
    tables = [f"[[models]]\n{model}" for model in models]
    Path("baton.toml").write_text("\n".join(['backend = "iree"', rest, *tables]))
    return load({})


async def prepared(served: ServedModels, index: int = 0) -> ModelTerms:
    prepare = served.terms[index].prepare
    assert prepare is not None
    return await prepare()


async def test_it_is_downloaded_when_it_is_prepared_and_has_what_is_free_beside_the_others(
    hub: HubServer, tmp_path: Path
) -> None:
    other = make_checkpoint(tmp_path / "other", dtype="bfloat16", max_positions=131_072)
    served = ServedModels.of(
        settings('path = "org/tiny"\nworkers = 2\naliases = ["small"]', f'path = "{other}"', rest="max_batch_size = 1")
    )
    assert not hub.requests, "the hub is asked by a request"
    tiny, known = served.terms
    assert (tiny.name, tiny.aliases, tiny.bytes, tiny.context, known.context) == (
        "org/tiny",
        ("small",),
        0,
        None,
        131_072,
    )
    assert [(each.name, each.model, each.on_demand) for each in served.launches] == [
        ("w0", "org/tiny", True),
        ("w1", "org/tiny", True),
        ("w2", "other", True),
    ]
    like = served.launches[0].like
    assert like is not None
    with pytest.raises(LaunchRefused, match="org/tiny is not on this machine yet"):
        like("extra0", "")
    with structlog.testing.capture_logs() as logs:
        terms = await prepared(served)
    assert (terms.name, terms.context, terms.bytes, terms.backend) == ("org/tiny", 131_072, 2 * known.bytes, "iree")
    assert terms.prepare is not None
    assert [each["event"] for each in logs if each["event"].startswith("model_")][-1] == "model_fetched"
    commands = [each.command("ipc://x", 1)[-1] for each in served.launches[:2]]
    found = [msgspec.json.decode(each, type=WorkerSpec) for each in commands]
    assert [(each.name, each.workers, each.place) for each in found] == [("w0", 2, 0), ("w1", 2, 1)]
    assert {each.model_path for each in found} == {str(p) for p in (tmp_path / "home").glob("hub/*/snapshots/*")}
    like("extra0", "")
    before = len(hub.requests)
    assert (await prepared(served)) == terms
    assert len(hub.requests) == before, "what is in the cache is used without the network"


@pytest.mark.parametrize(
    ("path", "variables", "problem"),
    [
        ("org/none", {}, "not found: "),
        ("org/tiny", {"HF_HUB_OFFLINE": "1"}, "offline mode: HF_HUB_OFFLINE forbids asking the hub for org/tiny"),
        ("org/tiny", {"HF_ENDPOINT": "http://127.0.0.1:1"}, "no network: "),
    ],
)
async def test_a_failure_has_the_cause_of_the_hub(
    hub: HubServer, path: str, variables: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServedModels.of(settings(f'path = "{path}"'))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ModelUnavailable, match=f"^{problem}"):
        await prepared(served)


async def test_a_checkpoint_that_cannot_be_served_is_refused_with_its_fault(hub: HubServer) -> None:
    served = ServedModels.of(settings('path = "org/tiny"\ncontext = 200_000'))
    with pytest.raises(ModelUnavailable, match="max_position_embeddings"):
        await prepared(served)


async def test_one_that_is_loaded_at_the_start_is_resolved_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, *, projector: bool) -> Path:
        raise HubError(HubCause.NOT_FOUND, f"no {name}")

    monkeypatch.setattr("cli.config.model.resolve_model", resolve)
    with pytest.raises(CommandFailed, match=r"^baton.toml: models\[0\]: not found: no org/none"):
        ServedModels.of(settings('path = "org/none"\nload = "start"'))


async def test_a_process_that_ends_without_a_result_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_fetch, "module_command", lambda *_: ["sh", "-c", "echo nonsense"])
    with pytest.raises(ModelUnavailable, match="the download of org/tiny ended without a result"):
        await fetch(HubId("org/tiny"))


async def test_an_adapter_is_fetched_for_a_request(hub: HubServer) -> None:
    hub.repos["org/lora"] = {"adapter_config.json": b"{}", "adapters.safetensors": b"1"}
    path = await fetch_adapter("org/lora@main")
    assert sorted(each.name for each in path.iterdir()) == ["adapter_config.json", "adapters.safetensors"]


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (HubCause.NOT_FOUND, (True, False)),
        (HubCause.NO_CHECKPOINT, (False, False)),
        (HubCause.NO_NETWORK, (False, True)),
        (HubCause.DISK_FULL, (False, True)),
        ("", (False, False)),
    ],
)
async def test_causes_are_the_clients_fault_or_pass(
    cause: str, kind: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"problem": "so", "cause": cause})
    monkeypatch.setattr(hub_fetch, "module_command", lambda *_: ["echo", line])
    with pytest.raises(AdapterFetchFailed, match=r"^so$") as failed:
        await fetch_adapter("org/lora")
    assert (failed.value.missing, failed.value.unavailable) == kind
