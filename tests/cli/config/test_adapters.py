"""The settings of adapters that requests choose, and what a worker refuses of them before it loads."""

from pathlib import Path
from typing import Any

import pytest

from cli.config.errors import CommandFailed
from cli.config.panels.lora import adapter_directories, named_adapters
from cli.config.settings import Settings
from protocol.commands import Submit, adapted_tenant, client_of
from protocol.request import Limits, Sampling, TextInput
from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.lora.lora_files import make_lora
from tests.workers.process.harness.gateway_peer import scripted
from workers.errors import LoadRefused
from workers.hub.errors import HubCause, HubError
from workers.process.prompts.request_adapter import adapter_refusal
from workers.process.startup.describe import describe


def test_adapters_are_named_by_flags_a_variable_or_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_LORA_MODULES", "sql=/a/b=c, py=d")
    found = named_adapters(Settings().lora_modules)
    assert found == {"sql": "/a/b=c", "py": "d"}
    assert adapter_directories(Settings().lora_modules) == {"sql": "/a/b=c", "py": str(Path("d").absolute())}


def test_an_adapter_that_the_hub_does_not_have_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(path: str) -> Path:
        raise HubError(HubCause.NOT_FOUND, f"no {path}")

    monkeypatch.setattr("cli.config.panels.lora.resolve_adapter", resolve)
    with pytest.raises(CommandFailed, match=r"lora_modules: sql: there is no directory 'org/x', .*: no org/x"):
        adapter_directories(["sql=org/x"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["sql"], "lora_modules: 'sql' is not NAME=DIR"),
        (["=path"], "lora_modules: '=path' is not NAME=DIR"),
        (["a\n=path"], "is no name: give up to 128 characters"),
        ([f"{'a' * 129}=path"], "is no name: give up to 128 characters"),
        (["a=x", "a=y"], "lora_modules: there are two adapters 'a': give each a name of its own"),
    ],
    ids=["alone", "empty", "control", "long", "twice"],
)
def test_other_texts_are_refused(given: list[str], problem: str) -> None:
    with pytest.raises(CommandFailed, match=problem):
        named_adapters(given)
    assert named_adapters([f"{'a' * 128}=path"])


def test_bounds_and_names_are_checked_before_a_worker_loads() -> None:
    names = [f"a{number}" for number in range(3)]
    describe(scripted(lora_modules=dict.fromkeys(names, ""), max_loras=3))
    with pytest.raises(LoadRefused, match="lora_modules: 3 adapters are more than max_loras, 2: set --max-loras 3"):
        describe(scripted(lora_modules=dict.fromkeys(names, ""), max_loras=2))
    with pytest.raises(LoadRefused, match="lora_modules: 'tiny' is the name of the model"):
        describe(scripted(model_name="tiny", lora_modules={"tiny": ""}))


def test_adapters_are_a_part_of_what_determines_tokens(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", layers=2)
    adapter = make_lora(tmp_path / "a", path, targets=["q_proj"])
    spec: dict[str, Any] = {"backend": "mlx", "device": "cpu", "model_path": str(path)}
    plain = describe(scripted(**spec))
    first, second = (describe(scripted(**spec, lora_modules={name: str(adapter)})) for name in ("one", "two"))
    assert len({plain.digest, first.digest, second.digest}) == 3
    assert len({plain.model_digest, first.model_digest, second.model_digest}) == 3
    with pytest.raises(LoadRefused, match=r"lora_modules: one: .*r: 4 is more than max_lora_rank, 3"):
        describe(scripted(**spec, lora_modules={"one": str(adapter)}, max_lora_rank=3))
    with pytest.raises(LoadRefused, match=r"lora_modules: one: .*adapter_config\.json: there is no such file"):
        describe(scripted(**spec, lora_modules={"one": str(tmp_path)}))


def test_rows_of_an_adapter_belong_to_a_tenant_of_the_same_client() -> None:
    tenants = [adapted_tenant("client:salt", name) for name in ("", "sql", "py")]
    assert (len(set(tenants)), {client_of(tenant) for tenant in tenants}) == (3, {"client"})
    submit = Submit(1, "r", TextInput("x"), Sampling(), Limits(), tenant=tenants[1], adapter="sql")
    assert adapter_refusal(submit, {"sql": 1}) == ""
    assert adapter_refusal(submit, {"py": 1}) == "this worker has no adapter 'sql'"
    other = Submit(1, "r", TextInput("x"), Sampling(), Limits(), tenant="client:salt", adapter="sql")
    assert adapter_refusal(other, {"sql": 1}) == "the tenant is not one of the adapter 'sql'"
