"""The files that `baton worker-keys` writes, and what it prints."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors.transport.join_tokens import JoinTokens, parse_token
from actors.transport.keys import KeyPair
from cli.main import app


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


def test_keys_are_created_listed_and_removed(run: CliRunner, tmp_path: Path) -> None:
    folder, file = str(tmp_path / "keys"), tmp_path / "worker.key"
    made = run.invoke(app, ["worker-keys", "init", "--keys-dir", folder])
    server = made.stdout.strip()
    assert "--server-key" in made.stderr
    made = run.invoke(app, ["worker-keys", "make", str(file)])
    public = made.stdout.strip()
    assert "baton worker-keys add" in made.stderr
    assert len(server) == len(public) == 64
    assert file.read_text().strip() not in (server, public)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run.invoke(app, ["worker-keys", "show", str(file)]).stdout.strip() == public
    assert run.invoke(app, ["worker-keys", "show", "--keys-dir", folder]).stdout.strip() == server
    listed = run.invoke(app, ["worker-keys", "list", "--keys-dir", folder])
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert "No worker may join yet" in listed.stderr
    added = run.invoke(app, ["worker-keys", "add", "gpu1", public, "--keys-dir", folder])
    listed_in = tmp_path / "keys" / "workers" / "gpu1.pub"
    assert (added.exit_code, added.stdout) == (0, f"gpu1 may join from now on: {listed_in}\n")
    assert run.invoke(app, ["worker-keys", "list", "--keys-dir", folder]).stdout == f"{public}  gpu1\n"
    (tmp_path / "keys" / "workers" / "gpu2.pub").write_text("half")
    listed = run.invoke(app, ["worker-keys", "list", "--keys-dir", folder])
    assert (listed.exit_code, listed.stdout) == (1, f"{public}  gpu1\n")
    assert "gpu2.pub: a key has 64 hexadecimal digits" in " ".join(listed.stderr.split())
    assert run.invoke(app, ["worker-keys", "remove", "gpu2", "--keys-dir", folder]).exit_code == 0
    removed = run.invoke(app, ["worker-keys", "remove", "gpu1", "--keys-dir", folder])
    assert (removed.exit_code, removed.stdout) == (0, "gpu1 may not join any more\n")
    assert run.invoke(app, ["worker-keys", "list", "--keys-dir", folder]).stdout == ""


def test_errors_are_messages_that_name_the_problem(run: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "worker.key"
    run.invoke(app, ["worker-keys", "make", str(file)])
    file.chmod(0o644)
    for words, message in (
        (["show", str(file)], "can be opened by others"),
        (["make", str(file)], "exists"),
        (["init"], "--keys-dir"),
        (["add", "../x", "0" * 64, "--keys-dir", str(tmp_path)], "'../x'"),
        (["add", "x", "0" * 63, "--keys-dir", str(tmp_path)], "64 hexadecimal digits"),
        (["remove", "x", "--keys-dir", str(tmp_path)], "there is no worker"),
    ):
        result = run.invoke(app, ["worker-keys", *words])
        assert result.exit_code == 1, words
        assert message in " ".join(result.stderr.split()), words


def test_a_token_is_for_one_name(run: CliRunner, tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")
    run.invoke(app, ["worker-keys", "init", "--keys-dir", folder])
    made = run.invoke(app, ["worker-keys", "token", "gpu1", "--valid-s", "60", "--keys-dir", folder])
    assert "BATON_JOIN_TOKEN" in made.stderr
    assert JoinTokens(tmp_path / "keys").read().names == {parse_token(made.stdout).public: "gpu1"}
    assert run.invoke(app, ["worker-keys", "remove", "gpu1", "--keys-dir", folder]).exit_code == 0
    assert JoinTokens(tmp_path / "keys").read().names == {}
    run.invoke(app, ["worker-keys", "add", "gpu1", KeyPair.generate().public_text, "--keys-dir", folder])
    refused = run.invoke(app, ["worker-keys", "token", "gpu1", "--keys-dir", folder])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "gpu1 may join already; with --replace" in " ".join(refused.stderr.split())
    assert run.invoke(app, ["worker-keys", "token", "gpu1", "--replace", "--keys-dir", folder]).exit_code == 0
    wrong = run.invoke(app, ["worker-keys", "token", "gpu2", "--valid-s", "0.5", "--keys-dir", folder])
    assert wrong.exit_code == 2
    assert "--valid-s: must be" in " ".join(wrong.stderr.split())
