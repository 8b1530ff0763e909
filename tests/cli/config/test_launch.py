"""The commands that start workers, and the gateway's settings."""

import re
from pathlib import Path

import msgspec
import pytest

from baton_serve.start import module_command
from cli.config.errors import CommandFailed
from cli.config.launch import check_sparse, gateway_settings, like_command, worker_command, worker_launches
from cli.config.model import ChosenModel, worker_spec
from cli.config.settings import Settings, flag
from cli.config.sources import load
from gateway.fleet.launch import LaunchRefused
from tests.checkpoints import make_checkpoint, make_tokenizer
from workers.checkpoints.checkpoint import DEFAULT_CONTEXT
from workers.process.spec import WorkerSpec
from workers.process.startup import context_choice
from workers.process.startup.describe import describe


def test_a_worker_gets_all_settings() -> None:
    settings = Settings(
        backend="scripted",
        max_batch_size=3,
        context=99,
        max_queue=5,
        step_tokens=7,
        workers=2,
        scheduler_policy="shortest-uncached-first",
        scheduler_headroom=0.25,
    )
    model = ChosenModel("m", Path("/models/m"))
    launches = worker_launches(settings, model)
    assert [(launch.name, launch.model) for launch in launches] == [("w0", "m"), ("w1", "m")]
    argv = launches[1].command("ipc:///x", 4)
    given = ["--endpoint", "ipc:///x", "--incarnation", "4", "--spec", argv[-1]]
    assert argv == module_command("workers", *given)
    spec = msgspec.json.decode(argv[-1], type=WorkerSpec)
    assert spec == worker_spec(settings, model, "w1", 2, 1)
    assert (spec.name, spec.max_batch_size, spec.context, spec.max_queue, spec.step_tokens) == ("w1", 3, 99, 5, 7)
    assert spec.scheduler_policy == gateway_settings(settings).scheduler_policy == "shortest-uncached-first"
    assert spec.scheduler_headroom == 0.25
    assert (spec.threads, spec.workers) == (0, 2)


@pytest.mark.parametrize("name", ["sparse_prefill_tokens", "sparse_prefill_keep"])
def test_what_only_sparse_prefill_reads_is_refused_without_it(name: str) -> None:
    settings = load({"backend": "scripted", name: 1})
    with pytest.raises(CommandFailed, match=f"^{flag(name)}: has no effect without --sparse-prefill: set both"):
        check_sparse(settings)
    check_sparse(load({"backend": "scripted", name: 1, "sparse_prefill": True}))
    check_sparse(load({"backend": "scripted", name: 1, "models": [{"name": "m", "sparse_prefill": True}]}))


def test_a_setting_that_a_worker_calls_otherwise_is_named_in_its_errors() -> None:
    settings = load({"backend": "scripted", "enable_prompt_embeds": True})
    assert worker_spec(settings, ChosenModel("m", Path("/m"))).sources["embeddings"] == "--enable-prompt-embeds"


def test_standby_workers_come_last_and_have_no_share_of_the_cores() -> None:
    launches = worker_launches(Settings(backend="scripted", workers=2, standby=2), ChosenModel("m", Path("/m")))
    assert [(launch.name, launch.standby) for launch in launches] == [
        ("w0", False),
        ("w1", False),
        ("w2", True),
        ("w3", True),
    ]
    specs = [msgspec.json.decode(launch.command("ipc:///x", 1)[-1], type=WorkerSpec) for launch in launches]
    assert {spec.workers for spec in specs} == {2}
    assert [spec.place for spec in specs] == [0, 1, None, None]


def test_an_extra_worker_has_no_place_and_a_new_incarnation_keeps_it() -> None:
    spec = WorkerSpec("w1", "m", "/m", backend="scripted", workers=2, place=1)
    extra, again = (like_command(spec, name, "")("ipc://x", 1)[-1] for name in ("extra0", "w1"))
    assert msgspec.json.decode(extra, type=WorkerSpec).place is None
    assert msgspec.json.decode(again, type=WorkerSpec).place == 1


def test_a_worker_chooses_its_threads_itself() -> None:
    assert worker_spec(Settings(), ChosenModel("m", Path("/m")), "w0", 4).threads == 0
    assert worker_spec(Settings(threads=5), ChosenModel("m", Path("/m")), "w0", 4).threads == 5
    assert worker_spec(Settings(), ChosenModel("m", Path("/m")), "w0", 0).workers == 1, "where all stand by"


def test_a_command_is_the_same_for_every_incarnation_but_for_its_number() -> None:
    command = worker_command(WorkerSpec(name="w0", model_name="m", model_path="/m"))
    first, second = command("ipc:///a", 1), command("ipc:///a", 2)
    assert [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]] == [("1", "2")]


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(CommandFailed, match="--listen-workers needs --keys-dir"):
        gateway_settings(Settings(listen_workers="tcp://127.0.0.1:7000"))


def test_settings_that_contradict_each_other_are_named_as_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "b.toml").write_text("max_streams_per_worker = 5\n")
    over = r"--max-choices is over .*b\.toml: max_streams_per_worker, 8 over 5: no worker"
    with pytest.raises(CommandFailed, match=f"^{over}"):
        gateway_settings(load({"max_choices": 8}, file))
    monkeypatch.setenv("BATON_MAX_STREAMS_PER_WORKER", "7")
    with pytest.raises(CommandFailed, match=r"^--max-choices is over BATON_MAX_STREAMS_PER_WORKER, 64 over 7"):
        gateway_settings(load({}))


def test_a_folder_of_adapters_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    absent = f"--lora-dir: the folder {tmp_path}/absent does not exist: make it, or name another one"
    for name, problem in (("absent", absent), ("file", f"--lora-dir: the folder {tmp_path}/file is a file: make it")):
        with pytest.raises(CommandFailed, match=f"^{re.escape(problem)}"):
            gateway_settings(load({"lora_dirs": [str(tmp_path), str(tmp_path / name)]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATON_LORA_DIRS", "absent")
    with pytest.raises(CommandFailed, match=f"^BATON_LORA_DIRS: the folder {tmp_path}/absent does not exist"):
        gateway_settings(load({}))
    (tmp_path / "absent").mkdir()
    assert gateway_settings(load({})).lora_dirs == ("absent",)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"cors_origins": ["foo"]}, "--cors-origin: 'foo' is not an origin"),
        ({"store": "foo"}, "--store is 'foo'; it must be memory"),
        ({"unix_socket_mode": "9"}, "--unix-socket-mode is '9'; it must be three octal digits"),
        ({"redis_url": "http://x"}, "--redis-url must be redis://HOST:PORT"),
        ({"tcp": False}, "--tcp is off and --unix-socket is empty"),
        ({"tls_cert": "a.pem"}, "--tls-cert needs --tls-key"),
        ({"tls_key": "a.pem"}, "--tls-key needs --tls-cert"),
    ],
)
def test_a_setting_of_the_gateway_that_is_refused_is_named_as_it_was_given(
    flags: dict[str, object], problem: str
) -> None:
    with pytest.raises(CommandFailed, match=f"^{re.escape(problem)}"):
        gateway_settings(load(flags))


def test_a_checkpoint_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("old", "like", "other")]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        make_checkpoint(folder, seed=seed, layers=1)
    spec = WorkerSpec("w0", "m", str(folders[0]), backend="iree")
    assert str(folders[1]) in like_command(spec, "w0", str(folders[1]))("ipc://x", 1)[-1]
    make_tokenizer(folders[2], 300)
    with pytest.raises(LaunchRefused, match="has another tokenizer"):
        like_command(spec, "w0", str(folders[2]))
    (folders[2] / "tokenizer.json").write_text('{"model": []}')
    with pytest.raises(LaunchRefused, match="is no tokenizer"):
        like_command(spec, "w0", str(folders[2]))
    (folders[2] / "tokenizer.json").unlink()
    with pytest.raises(LaunchRefused, match="has another tokenizer"):
        like_command(spec, "w0", str(folders[2]))


def test_all_workers_and_their_incarnations_have_the_context_that_was_chosen_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (make_checkpoint(tmp_path / name, layers=1, max_positions=131_072) for name in ("old", "new"))
    monkeypatch.setattr(context_choice, "spare_bytes", lambda: 1 << 23)
    settings = Settings(backend="iree", workers=2, standby=1)
    launches = worker_launches(settings, ChosenModel("m", old))
    specs = [msgspec.json.decode(launch.command("ipc:///x", 1)[-1], type=WorkerSpec) for launch in launches]
    contexts = {describe(spec).context for spec in specs}
    assert contexts == {specs[0].chosen_context}
    assert DEFAULT_CONTEXT < specs[0].chosen_context < 131_072
    monkeypatch.setattr(context_choice, "spare_bytes", lambda: 1 << 22)
    assert {describe(spec).context for spec in specs} == contexts, "although the workers take memory by now"
    more = msgspec.json.decode(like_command(specs[0], "extra0", "")("ipc://x", 1)[-1], type=WorkerSpec)
    assert describe(more).context == specs[0].chosen_context
    other = msgspec.json.decode(like_command(specs[0], "w0", str(new))("ipc://x", 1)[-1], type=WorkerSpec)
    assert other.chosen_context < specs[0].chosen_context, "another checkpoint has another choice"
