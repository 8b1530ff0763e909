"""`baton keys`: what it writes and prints."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from gateway.key_weights import Priority
from gateway.keys.key_file import KeyFile
from gateway.keys.record import MAX_MODELS, KeyLimits, digest_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api-keys"


def run(path: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["keys", *words, "--api-keys-file", str(path)])


def limits(path: Path) -> dict[str, KeyLimits | None]:
    return {line.name: None if line.record is None else line.record.limits for line in KeyFile(path).read()}


def test_a_key_is_printed_once_and_its_digest_is_kept(path: Path) -> None:
    options = ["--requests-per-minute", "60", "--tokens-per-minute", "9000", "--max-concurrent", "2"]
    options += ["--allow-model", "a", "--allow-model", "b", "--allow-model", "a", "--priority", "high"]
    made = run(path, "create", "alice", *options, "--expires", "2090-01-02")
    assert made.exit_code == 0, made.stderr
    key = made.stdout.strip()
    assert made.stdout == f"{key}\n"
    assert "baton admin reload-keys" in made.stderr
    (line,) = KeyFile(path).read()
    assert line.digest == digest_of(key.encode())
    assert limits(path) == {
        "alice": KeyLimits(
            requests_per_minute=60,
            tokens_per_minute=9000,
            max_concurrent=2,
            models=("a", "b"),
            priority=Priority.HIGH,
            expires=datetime(2090, 1, 2, tzinfo=UTC),
        )
    }
    assert run(path, "create", "bob").stdout.strip() != key


def test_limits_change_one_by_one(path: Path) -> None:
    run(path, "create", "alice", "--requests-per-minute", "60", "--allow-model", "a")
    changed = run(path, "limits", "alice", "--tokens-per-minute", "100", "--requests-per-minute", "0")
    assert changed.stdout == "alice: 100 tokens/min, models a\n"
    assert "baton admin reload-keys" in changed.stderr
    before = datetime.now(UTC).replace(microsecond=0)
    assert run(path, "limits", "alice", "--any-model", "--priority", "low", "--expires", "90d").exit_code == 0
    now = limits(path)["alice"]
    assert now is not None
    assert now.expires is not None
    assert before + timedelta(days=90) <= now.expires <= datetime.now(UTC) + timedelta(days=90)
    assert run(path, "limits", "alice", "--expires", "never").exit_code == 0
    assert limits(path) == {"alice": KeyLimits(tokens_per_minute=100, priority=Priority.LOW)}


def test_keys_are_listed_and_revoked(path: Path) -> None:
    path.write_text("bob:secret\n")
    path.chmod(0o600)
    key = run(path, "create", "alice", "--max-concurrent", "1").stdout.strip()
    assert run(path, "create", "ops", "--admin").exit_code == 0
    listed = run(path, "list")
    rows = [line.split() for line in listed.stdout.splitlines()]
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert [row[0] for row in rows] == ["name", "bob", "alice", "ops"]
    assert rows[2] == ["alice", "clients", today, "1", "at", "once"]
    assert rows[3][:2] == ["ops", "administration"]
    entries = json.loads(run(path, "list", "--json").stdout)["keys"]
    assert [(entry["name"], entry.get("limits", {}).get("max_concurrent")) for entry in entries] == [
        ("bob", None),
        ("alice", 1),
        ("ops", None),
    ]
    for secret in ("secret", key, digest_of(key.encode()).hex()):
        assert secret not in listed.stdout + json.dumps(entries)
    revoked = run(path, "revoke", "bob")
    assert (revoked.exit_code, revoked.stdout) == (0, "bob has no key any more\n")
    assert "baton admin reload-keys" in revoked.stderr
    assert list(limits(path)) == ["alice", "ops"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["create", "../x"], 1, "the name is not"),
        (["create", "default"], 1, "a key of the settings"),
        (["create", "ops", "--admin", "--max-concurrent", "1"], 1, "no limits but its expiry"),
        (["create", "x", "--requests-per-minute", "-1"], 2, "--requests-per-minute"),
        (["create", "x", "--expires", "yesterday"], 2, "--expires"),
        (["create", "x", "--expires", "0d"], 2, "--expires"),
        (["create", "x", "--expires", "36501d"], 2, "--expires"),
        (["create", "x", "--priority", "urgent"], 2, "--priority"),
        (["create", "x", "--allow-model", ""], 2, "--allow-model"),
        (["create", "x", *["--allow-model", "m"] * (MAX_MODELS + 1)], 2, "--allow-model"),
        (["limits", "alice"], 1, "no limit is given"),
        (["limits", "alice", "--any-model", "--allow-model", "m"], 1, "exclude each other"),
        (["limits", "nobody", "--any-model"], 1, "no key of 'nobody'"),
        (["revoke", "nobody"], 1, "no key of 'nobody'"),
    ],
)
def test_errors_name_the_problem_and_change_nothing(path: Path, words: list[str], status: int, message: str) -> None:
    run(path, "create", "alice")
    before = path.read_bytes()
    result = run(path, *words)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in " ".join(result.stderr.split())
    assert path.read_bytes() == before


def test_the_file_must_be_named_and_its_folder_exist(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["keys", "list"])
    assert result.exit_code == 1
    assert "--api-keys-file is needed" in result.stderr
    result = run(tmp_path / "none" / "keys", "create", "alice")
    assert result.exit_code == 1
    assert "cannot be written" in " ".join(result.stderr.split())
