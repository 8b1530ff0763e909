"""`baton pull` and `baton list`, with a hub on loopback."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.commands.models.commands import Commands
from tests.cli.pseudo_terminal import Terminal
from tests.workers.hub.hub_server import hub_error


def test_a_model_is_pulled_and_judged(baton: Commands) -> None:
    pulled = baton.invoke("pull", "org/tiny", "--backend", "iree")
    assert (pulled.returncode, pulled.stderr) == (0, "")
    first, second = pulled.stdout.splitlines()
    assert first == f"org/tiny: 5.9 MB of 5.9 MB downloaded, revision {baton.hub.commit('org/tiny')[:12]}"
    assert second == "Can be served (llama on iree, 2048 tokens of context): baton run org/tiny"
    again = json.loads(baton.invoke("pull", "org/tiny", "--json", "--backend", "iree").stdout)
    (folder,) = baton.snapshots()
    assert (again["path"], again["revision"]) == (str(folder), baton.hub.commit("org/tiny"))
    assert (again["downloaded_bytes"], again["bytes"]) == (0, sum(file.stat().st_size for file in folder.iterdir()))
    assert (again["servable"], again["backend"], again["problem"]) == (True, "iree", None)


def test_a_model_that_cannot_be_served_is_pulled_and_named(baton: Commands) -> None:
    pulled = baton.invoke("pull", "org/bert")
    assert pulled.returncode == 1
    assert "Cannot be served: " in pulled.stdout
    assert "architectures: ['BertModel'] is not supported, only one of LlamaForCausalLM" in pulled.stdout
    assert pulled.stderr == "Error: org/bert is in the cache, and Baton cannot serve it\n"


def test_a_model_without_a_tokenizer_says_so(baton: Commands) -> None:
    del baton.hub.repos["org/random"]["tokenizer.json"]
    pulled = baton.invoke("pull", "org/random")
    assert (pulled.returncode, "no tokenizer.json, so that requests and answers are token ids" in pulled.stdout) == (
        0,
        True,
    )


def test_a_terminal_shows_the_progress(baton: Commands) -> None:
    with Terminal(("-m", "cli", "pull", "org/tiny"), baton.environment) as terminal:
        terminal.wait_for("5.9/5.9 MB")
        terminal.wait_for("Can be served")
        assert terminal.exit_status() == 0


@pytest.mark.parametrize(
    ("words", "variables", "problem"),
    [
        (["org/none"], {}, "not found: "),
        (["org/tiny@v9"], {}, "revision not found: org/tiny has no revision v9"),
        (
            ["org/tiny"],
            {"HF_HUB_OFFLINE": "1"},
            "offline mode: HF_HUB_OFFLINE forbids asking the hub for org/tiny; unset it",
        ),
        (["org/tiny"], {"HF_ENDPOINT": "http://no-such-host.invalid"}, "no network: http://no-such-host.invalid"),
    ],
    ids=["name", "revision", "offline", "network"],
)
def test_a_failure_names_its_cause(baton: Commands, words: list[str], variables: dict[str, str], problem: str) -> None:
    pulled = baton.invoke("pull", *words, **variables)
    assert (pulled.returncode, pulled.stdout) == (1, "")
    assert pulled.stderr.startswith(f"Error: {problem}")
    assert len(pulled.stderr.splitlines()) == 1
    assert [*baton.snapshots()] == []


def test_what_is_no_hub_id_is_a_wrong_argument(baton: Commands) -> None:
    pulled = baton.invoke("pull", "./folder")
    assert (pulled.returncode, "'./folder' is not a hub id like ORG/NAME" in pulled.stderr) == (2, True)
    assert baton.hub.requests == []


def test_the_models_on_this_machine_are_listed(baton: Commands) -> None:
    for model in ("org/tiny", "org/bert"):
        baton.invoke("pull", model)
    baton.hub.failure = hub_error(503)
    baton.hub.requests.clear()
    listed = json.loads(baton.invoke("list", "--json", "--backend", "mlx").stdout)
    assert listed["cache"] == str(baton.home / "hub")
    builtin, bert, tiny = listed["models"]
    assert (builtin["model"], builtin["servable"], builtin["revision"]) == ("baton-tiny", True, None)
    assert (bert["model"], bert["servable"], "BertModel" in bert["problem"]) == ("org/bert", False, True)
    assert (tiny["model"], tiny["servable"], tiny["backend"]) == ("org/tiny", True, "mlx")
    assert tiny["revision"] == baton.hub.commit("org/tiny")
    assert tiny["bytes"] == builtin["bytes"] - os.path.getsize(Path("models/builtin/README.md"))
    lines = baton.run("list", "--backend", "mlx").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "baton-tiny", "org/bert", "org/tiny"]
    assert lines[3].rstrip().endswith(" yes, on mlx")
    assert baton.hub.requests == []


def test_a_damaged_model_is_listed_with_its_problem(baton: Commands) -> None:
    baton.invoke("pull", "org/tiny")
    (folder,) = baton.snapshots()
    os.truncate((folder / "model.safetensors").resolve(), 100)
    listed = baton.invoke("list")
    assert "no: " in listed.stdout
    assert "model.safetensors: is not a safetensors file" in listed.stdout
    (folder / "model.safetensors").resolve().unlink()
    listed = baton.invoke("list")
    assert "org/tiny is not complete: `baton pull org/tiny` repeats its download" in listed.stderr
    assert baton.invoke("pull", "org/tiny").returncode == 0
    assert "org/tiny" in baton.invoke("list").stdout


def test_the_shell_completes_models_of_the_cache(baton: Commands) -> None:
    baton.invoke("pull", "org/random")
    variables = {"_BATON_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    assert baton.run(COMP_WORDS="baton rm or", **variables).stdout.split() == ["org/random"]
    assert baton.run(COMP_WORDS="baton serve ", **variables).stdout.split() == ["baton-tiny", "org/random"]
