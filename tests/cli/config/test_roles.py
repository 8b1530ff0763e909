"""The prefill workers of a server, and the role of a worker that joins one."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.commands.worker import run_worker
from cli.config.errors import CommandFailed
from cli.config.launch import worker_launches
from cli.config.model import ChosenModel
from cli.config.served_models import ServedModels
from cli.config.settings import Settings
from cli.config.sources import load
from cli.scaling.terms import ScaleTerms
from workers.process.spec import WorkerSpec

pytestmark = pytest.mark.usefixtures("no_settings")

LISTENS = {"listen_workers": "tcp://127.0.0.1:0", "keys_dir": "/keys"}


def roles(settings: Settings) -> list[str]:
    launches = worker_launches(settings, ChosenModel("m", Path("/m")))
    return [msgspec.json.decode(each.command("ipc:///x", 1)[-1], type=WorkerSpec).role for each in launches]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"workers": 2}, ["both", "both"]),
        ({"workers": 3, "prefill_workers": 1, "standby": 1}, ["both", "both", "prefill", "both"]),
        ({"workers": 2, "prefill_workers": 2, **LISTENS}, ["prefill", "prefill"]),
        ({"workers": 1, "role": "prefill"}, ["both"]),
    ],
)
def test_the_last_workers_before_the_standbys_are_for_prompts(given: dict[str, Any], expected: list[str]) -> None:
    settings = Settings(backend="scripted", **given)
    assert roles(settings) == expected
    ServedModels.of(settings)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"workers": 2, "prefill_workers": 3, **LISTENS}, "--prefill-workers: 3 of 2 --workers are too many"),
        (
            {"workers": 2, "prefill_workers": 2},
            "--prefill-workers: 2 of 2 --workers leave none to go on",
        ),
        ({"workers": 2, "prefill_workers": 1, "prefix_cache": False}, "--prefill-workers: .* need the prefix cache"),
    ],
)
def test_prefill_workers_whose_streams_could_not_move_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(CommandFailed, match=text):
        ServedModels.of(Settings(backend="scripted", **given))


def test_each_of_several_models_has_prefill_workers_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "baton.toml"
    file.write_text('[[models]]\nname = "a"\nworkers = 2\nprefill_workers = 1\n[[models]]\nname = "b"')
    served = ServedModels.of(load({"backend": "scripted"}, file))
    specs = [msgspec.json.decode(each.command("ipc:///x", 1)[-1], type=WorkerSpec) for each in served.launches]
    assert [(each.name, each.role) for each in specs] == [("w0", "both"), ("w1", "prefill"), ("w2", "both")]
    file.write_text('[[models]]\nname = "a"\nprefill_workers = 1')
    with pytest.raises(CommandFailed, match=re.escape("models[0]") + ".*--prefill-workers: 1 of 1"):
        ServedModels.of(load({"backend": "scripted"}, file))


def test_a_worker_that_joins_as_a_prefill_worker_needs_the_prefix_cache() -> None:
    given = Settings(backend="scripted", role="prefill", prefix_cache=False)
    with pytest.raises(CommandFailed, match=r"--role: .* need the prefix cache"):
        run_worker(given)


def test_workers_that_ray_places_have_the_role_that_is_given() -> None:
    settings = load({"join": ("tcp://10.0.0.1:7000",), "role": "prefill"})
    arguments = ScaleTerms.of(settings).arguments(settings, "ab" * 32)
    assert arguments[arguments.index("--role") + 1] == "prefill"
