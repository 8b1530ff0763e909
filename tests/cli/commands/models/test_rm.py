"""`baton rm`: it asks, and keeps what a server serves."""

import signal
from pathlib import Path

import pytest

from cli.commands.models.remove import remove_model
from cli.config.errors import CommandFailed
from tests.cli.commands.models.commands import Commands
from tests.cli.commands.test_serve import read_until, serving
from tests.cli.pseudo_terminal import Terminal
from workers.process.spec import WorkerSpec


def test_a_model_is_removed_after_a_confirmation(baton: Commands) -> None:
    baton.invoke("pull", "org/random")
    for answer, status, left in (("n", 1, 1), ("y", 0, 0)):
        with Terminal(("-m", "cli", "rm", "org/random"), baton.environment) as terminal:
            terminal.wait_for("Remove org/random (439.6 kB)?")
            terminal.type(f"{answer}\n")
            assert terminal.exit_status() == status
        assert len([*baton.snapshots()]) == left


def test_without_a_terminal_a_flag_is_needed(baton: Commands) -> None:
    baton.invoke("pull", "org/random")
    refused = baton.invoke("rm", "org/random")
    assert (refused.returncode, "only with --yes" in refused.stderr, len([*baton.snapshots()])) == (1, True, 1)
    part = baton.invoke("rm", "org/random:Q8_0", "--yes")
    assert (part.returncode, "does not have org/random:Q8_0" in part.stderr) == (1, True)
    removed = baton.invoke("rm", "org/random", "--yes")
    assert (removed.returncode, [*baton.snapshots()]) == (0, [])
    assert removed.stdout.startswith("org/random was removed: 44")
    again = baton.invoke("rm", "org/random", "--yes")
    assert (again.returncode, "does not have org/random" in again.stderr) == (1, True)


def test_what_a_worker_serves_is_not_removed(baton: Commands) -> None:
    """Under whatever name. The backend is the scripted one, whose command line has the path, too."""
    baton.invoke("pull", "org/random")
    revision = f"org/random@{baton.hub.commit('org/random')}"
    serve = ("-m", "cli", "serve", "org/random", "--name", "other", "--backend", "scripted", "--port", "0")
    with serving(serve, baton.environment) as server:
        read_until(server, "ready")
        for named in ("org/random", revision):
            refused = baton.invoke("rm", named, "--yes")
            assert refused.returncode == 1
            assert f"serves {named}; stop its server first" in refused.stderr
            assert len([*baton.snapshots()]) == 1
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=100) == 0
    assert baton.invoke("rm", revision, "--yes").returncode == 0


def test_what_a_worker_serves_by_a_link_is_not_removed(baton: Commands, tmp_path: Path) -> None:
    baton.invoke("pull", "org/random")
    (snapshot,) = baton.snapshots()
    link = tmp_path / "current"
    link.symlink_to(snapshot)
    serve = ("-m", "cli", "serve", str(link), "--backend", "scripted", "--port", "0")
    with serving(serve, baton.environment) as server:
        read_until(server, "ready")
        refused = baton.invoke("rm", "org/random", "--yes")
        assert (refused.returncode, "stop its server first" in refused.stderr) == (1, True)
        assert snapshot.exists()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=100) == 0


def test_a_file_that_a_worker_serves_is_not_removed_and_another_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--org--m"
    snapshot = folder / "snapshots" / ("5c" * 20)
    for made in (snapshot, folder / "blobs", folder / "refs"):
        made.mkdir(parents=True)
    (folder / "refs" / "main").write_text(snapshot.name)
    for name in ("Q4_0", "Q8_0"):
        (folder / "blobs" / name).write_bytes(b"weights")
        (snapshot / f"m-{name}.gguf").symlink_to(folder / "blobs" / name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    served = WorkerSpec("w0", "m", str(snapshot / "m-Q4_0.gguf"))
    monkeypatch.setattr("cli.commands.models.remove.running_workers", lambda: {1: served})
    for name in ("org/m:Q4_0", "org/m"):
        with pytest.raises(CommandFailed, match=f"serves {name}; stop its server first"):
            remove_model(name, yes=True)
    remove_model("org/m:Q8_0", yes=True)
    assert [file.name for file in snapshot.iterdir()] == ["m-Q4_0.gguf"]
