"""The settings of `baton scale`: each wrong one is a sentence that names it."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.commands.scale import scale_workers, show_places, stop_workers
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from cli.main import app
from cli.scaling.terms import MAX_RESOURCES, ScaleTerms, parse_resources, scale_name

GIVEN: dict[str, Any] = {"join": ("tcp://10.0.0.1:7000",), "ray": "auto"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"join": ()}, "--join is needed: the address that the gateway was given"),
        ({"join": ("10.0.0.1:7000",)}, "--join: write tcp://HOST:PORT, not '10.0.0.1:7000'"),
        ({"join": ("tcp://10.0.0.1:1", "tcp://10.0.0.2:1")}, "--join: a worker that is placed joins one gateway"),
        ({"replicas": 3, "max_replicas": 2}, "--max-replicas: 2 is less than --replicas, 3"),
        ({"replicas": 0, "max_replicas": 2}, "--replicas: with --max-replicas it must be at least 1"),
        ({"resources": "8"}, "--resources: must be a JSON object of 1 to 32"),
        ({"resources": "{}"}, "--resources: must be a JSON object of 1 to 32"),
        ({"resources": "{CPU: 8}"}, '--resources: must be a JSON object such as {"CPU": 8}: Expecting'),
        ({"resources": '{"CPU": 0}'}, "--resources: CPU must be a number above 0, not 0"),
        ({"resources": '{"CPU": true}'}, "--resources: CPU must be a number above 0, not true"),
        ({"resources": '{"GPU": "1"}'}, '--resources: GPU must be a number above 0, not "1"'),
        ({"resources": '{"CPU": NaN}'}, "--resources: CPU must be a number above 0, not NaN"),
        ({"resources": '{"GPU": 1.5}'}, "--resources: GPU must be a whole number above 1, as Ray wants it, not 1.5"),
        ({"resources": '{"cpu": 1}'}, "--resources: write CPU, not cpu"),
        ({"resources": '{"CPU": 1, "Memory": 8}'}, "--resources: write memory, not Memory"),
        ({"resources": '{"memory": 1048575}'}, "--resources: memory is in bytes, and 1.04858e+06 is less than any"),
        ({"resources": '{"GPU": 0.00009}'}, "--resources: GPU must be at least 0.0001, as Ray wants it, not 9e-05"),
        ({"scale_name": "../x"}, "--scale-name: '../x-0' is not a valid worker name"),
        ({"scale_name": "x" * 127}, "--scale-name: "),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        ScaleTerms.of(Settings(**(GIVEN | wrong)))
    assert str(caught.value).startswith(problem)


def test_the_bounds_of_resources() -> None:
    most = {f"r{number}": 1 for number in range(MAX_RESOURCES)}
    assert parse_resources(str(most).replace("'", '"')) == most
    with pytest.raises(CommandFailed, match="1 to 32"):
        parse_resources(str(most | {"more": 1}).replace("'", '"'))
    assert parse_resources('{"GPU": 0.0001, "memory": 1048576}') == {"GPU": 0.0001, "memory": 1 << 20}
    assert parse_resources('{"GPU": 0.5, "memory": 8000000000}') == {"GPU": 0.5, "memory": 8e9}
    assert scale_name(Settings(scale_name="x" * 126, replicas=10)) == "x" * 126


def test_the_command_of_a_worker_has_what_was_given() -> None:
    settings = Settings(
        **GIVEN, model="/models/a", backend="scripted", mmap=False, parse_special=True, max_batch_size=4, replicas=2
    )
    given = ("join", "ray", "model", "backend", "mmap", "parse_special", "max_batch_size")
    settings = settings.from_sources(dict.fromkeys(given, "a flag"))
    terms = ScaleTerms.of(settings)
    assert terms.arguments(settings, "5c" * 32) == [
        *("worker", "/models/a", "--backend", "scripted", "--max-batch-size", "4"),
        *("--parse-special", "--no-mmap", "--join", "tcp://10.0.0.1:7000", "--server-key", "5c" * 32),
        *("--join-timeout-s", "120"),
    ]
    assert (terms.bounds.least, terms.bounds.most, terms.resources) == (2, 2, {"CPU": 1})
    other = ScaleTerms.of(settings.model_copy(update={"max_replicas": 5, "join_timeout_s": 7.5}))
    assert other.bounds.most == 5
    assert other.arguments(settings.model_copy(update={"join_timeout_s": 7.5}), "k")[-1] == "7.5"


COMMANDS: list[Callable[[Settings, str], Any]] = [scale_workers, stop_workers, show_places]


@pytest.mark.parametrize("command", COMMANDS, ids=["scale", "stop", "status"])
def test_an_address_and_the_package_of_ray_are_needed(
    command: Callable[[Settings, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandFailed, match="--ray is needed: the address of the Ray cluster"):
        command(Settings(**(GIVEN | {"ray": ""})), "")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "cli.scaling.ray_cluster", raising=False)
    with pytest.raises(CommandFailed, match=r"--ray needs the package of Ray .*: pip install 'baton-serve\[ray\]'"):
        command(Settings(**GIVEN), "")


def test_status_and_stop_exclude_each_other() -> None:
    result = CliRunner().invoke(app, ["scale", "--status", "--stop"])
    assert result.exit_code == 1
    assert "--status and --stop exclude each other" in result.stderr
