"""All commands on the command line: help, errors that name the flag, and no tracebacks."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from baton_serve import __version__
from cli.config.panels.field import ENGINE, JOINING, MODEL, PLACEMENT
from cli.config.settings import Settings, flag, of_panels
from cli.main import app
from tests.checkpoints import make_checkpoint

COMMANDS = (
    "serve",
    "pull",
    "list",
    "inspect",
    "ps",
    "run",
    "rm",
    "generate",
    "chat",
    "score",
    "doctor",
    "bench",
    "chaos",
    "compile",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    """Run commands without the settings of this environment, and with lines that are not wrapped."""
    monkeypatch.chdir(tmp_path)
    environment = dict.fromkeys(f"BATON_{name.upper()}" for name in Settings.model_fields)
    return CliRunner(env={**environment, "BATON_CONFIG": None, "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})


def test_the_version_is_the_one_of_the_package(run: CliRunner) -> None:
    assert run.invoke(app, ["--version"]).output == f"baton {__version__}\n"


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from cli.__main__ import main
main()
"""


def test_a_command_that_is_interrupted_while_it_loads_prints_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_help_lists_every_command(run: CliRunner) -> None:
    output = run.invoke(app, ["--help"]).output
    assert all(command in output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: CliRunner, command: str) -> None:
    result = run.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage: baton" in result.output or "Usage: root" in result.output


@pytest.mark.parametrize(
    "command", ["workers", "drain", "restart", "reload", "reload-keys", "models", "load", "unload", "reload-model"]
)
def test_every_admin_command_has_help(run: CliRunner, command: str) -> None:
    result = run.invoke(app, ["admin", command, "--help"])
    assert result.exit_code == 0
    assert "--url" in result.output


def command_lines(command: Any, words: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The words of a command and of all commands below it."""
    yield [*words]
    for name, below in getattr(command, "commands", {}).items():
        yield from command_lines(below, (*words, name))


PYTHON_TYPES = re.compile(r"<\w+>|\b(?:INTEGER|FLOAT|BOOLEAN|STR|INT|BOOL|PATH|UUID)\b|\[(?:int|str|float|bool)\b")


@pytest.mark.parametrize("words", [*command_lines(typer.main.get_command(app))], ids=" ".join)
def test_help_names_the_value_of_every_option_and_no_python_type(run: CliRunner, words: list[str]) -> None:
    result = run.invoke(app, [*words, "-h"])
    assert result.exit_code == 0
    assert "--help" in result.output
    assert not PYTHON_TYPES.findall(result.output)


def test_a_rolling_restart_is_of_all_workers(run: CliRunner) -> None:
    result = run.invoke(app, ["admin", "restart", "w0", "--rolling"])
    assert result.exit_code == 1
    assert "for all workers" in result.stderr


def test_serve_has_a_flag_for_every_setting(run: CliRunner) -> None:
    output = run.invoke(app, ["serve", "--help"]).output
    others = of_panels(JOINING, PLACEMENT)
    assert all((flag(name) in output) is (name not in others) for name in Settings.model_fields if name != "model")


def test_worker_has_a_flag_for_every_setting_of_joining_and_computing(run: CliRunner) -> None:
    output = run.invoke(app, ["worker", "--help"]).output
    assert all(flag(name) in output for name in of_panels(MODEL, ENGINE, JOINING) if name != "model")
    assert "--port" not in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--port", "70000"], "--port: must be a whole number from 0 to 65535, not '70000'"),
        (["serve", "--port", "x"], "--port: must be a whole number from 0 to 65535, not 'x'"),
        (
            ["serve", "--backend", "cuda"],
            "--backend: must be one of auto, iree, mlx, scripted or the name of an installed plug-in, not 'cuda'",
        ),
        (["serve", "--prot", "1"], "--port"),
        (["serve", "--workers", "-1"], "--workers"),
        (["serve", "--config", "none.toml"], "--config: there is no file none.toml"),
        (["generate"], "--prompt"),
        (["generate", "-p", ""], "--prompt: is empty"),
        (["generate", "-p", "x", "--top-p", "0"], "--top-p"),
        (["generate", "-p", "x", "--top-p", "nan"], "--top-p"),
        (["generate", "-p", "x", "--temperature", "-1"], "--temperature: must be a number from 0 to 100, not -1.0"),
        (["generate", "-p", "x", "--temperature", "hot"], "--temperature: must be a number, not 'hot'"),
        (["generate", "-p", "x", "--top-k", "1.5"], "--top-k: must be a whole number, not '1.5'"),
        (["chat", "--min-p", "2"], "--min-p: must be a number from 0 to 1, not 2.0"),
        (["chaos", "--streams", "0"], "--streams: must be a whole number from 1 to 4096, not '0'"),
        (["chaos", "--seed", "x"], "--seed: must be a whole number, not 'x'"),
        (["admin", "drain", "w0", "--grace-s", "-1"], "--grace-s: must be a number from 0 to 86400, not '-1'"),
        (["generate", "-p", "x", "--seed", "-1"], "--seed"),
        (["generate", "-p", "x", "-n", "0"], "--max-tokens"),
        (
            ["generate", "-p", "x", "--seed", str(1 << 64)],
            "--seed: must be a whole number from 0 to 9223372036854775807",
        ),
        (
            ["generate", "-p", "x", "--logit-bias", f"{1 << 64}=1"],
            "--logit-bias: must be ID=BIAS, ID a whole number from 0",
        ),
        (["generate", "-p", "x", "-n", "4", "--min-tokens", "5"], "--min-tokens: must be at most --max-tokens"),
        (["generate", "-p", "x", "--url", "127.0.0.1:1", "--device", "cuda", "--context", "9"], "--context, --device"),
        (["chat", "--url", "127.0.0.1:1", "--quantize", "int8"], "--quantize: not with --url"),
        (
            ["generate", "-p", "x", "--stop", ""],
            "--stop: must be at most 16 values, each a text of 1 to 256 characters",
        ),
        (["generate", "-p", "x", "--stop", "\udcff"], "--stop: must be UTF-8"),
        (["generate", "-p", "x", "--no-chat-template", "--system", "y"], "--system"),
        (["bench", "--seconds", "0"], "--seconds: must be a number from 0.1 to 600, not '0'"),
        (["dance"], "dance"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_named(run: CliRunner, words: list[str], message: str) -> None:
    result = run.invoke(app, words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_wrong_variable_and_an_unknown_one_are_named(run: CliRunner) -> None:
    result = run.invoke(app, ["bench", "--backend", "scripted"], env={"BATON_CONTEXT": "-1"})
    assert result.exit_code == 2
    assert "BATON_CONTEXT" in result.stderr
    result = run.invoke(
        app,
        ["generate", "-p", "x", "-n", "1", "--backend", "scripted"],
        env={"BATON_CONTEXTS": "1", "BATON_CONTEXT": ""},
    )
    assert result.exit_code == 0
    assert "BATON_CONTEXTS is not a setting (did you mean BATON_CONTEXT?)" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chaos", "--dtype", "float32"], "--dtype: only with --own"),
        (["chaos", "./model", "--yes"], "MODEL: only with --own"),
        (["chaos", "--log", "x"], "--log: only with --own"),
        (["chaos", "--own", "--url", "http://127.0.0.1:8000"], "--url: not with --own"),
        (["chaos", "--own", "--yes"], "--yes: not with --own"),
        (["chaos", "--faults", "nan"], "'nan' comes from within"),
        (["chaos", "--own", "--faults", "burn"], "there is no 'burn'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_exclude_each_other_are_named(run: CliRunner, words: list[str], message: str) -> None:
    result = run.invoke(app, words)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("command", [["generate", "-p", "x"], ["score", "-p", "x"], ["bench"], ["chat"], ["compile"]])
def test_a_missing_model_is_a_command_error(run: CliRunner, command: list[str]) -> None:
    result = run.invoke(app, [*command, "./no/such/model"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "no/such/model" in result.stderr


def test_generate_answers_and_counts(run: CliRunner) -> None:
    words = ["generate", "-p", "Hello", "-n", "8", "--backend", "scripted", "--no-chat-template", "--stats"]
    result = run.invoke(app, words)
    assert result.exit_code == 0, result.output
    assert len(result.stdout) == 8 + 1
    assert "5 prompt tokens, 8 generated (length)" in result.stderr
    assert run.invoke(app, words).stdout == result.stdout


def test_generate_reads_the_prompt_from_standard_input(run: CliRunner) -> None:
    words = ["generate", "-n", "8", "--backend", "scripted", "--no-chat-template", "-p"]
    assert run.invoke(app, [*words, "-"], input="Hello").stdout == run.invoke(app, [*words, "Hello"]).stdout


def test_generate_ends_before_a_stop_string(run: CliRunner) -> None:
    words = ["generate", "-p", "Hello", "-n", "8", "--backend", "scripted", "--no-chat-template"]
    whole = run.invoke(app, words).stdout
    assert run.invoke(app, [*words, "--stop", whole[4:6]]).stdout == whole[: whole.index(whole[4:6])] + "\n"


def test_a_prompt_that_is_not_utf8_is_accepted(run: CliRunner) -> None:
    words = ["generate", "-n", "4", "--backend", "scripted", "--no-chat-template", "-p", "-"]
    assert run.invoke(app, words, input=b"caf\xe9").exit_code == 0


def test_a_prompt_over_the_context_is_a_command_error(run: CliRunner) -> None:
    words = ["generate", "-p", "x" * 99, "--backend", "scripted", "--no-chat-template", "--context", "64"]
    result = run.invoke(app, words)
    assert result.exit_code == 1
    assert "context" in result.stderr


def test_a_model_without_a_template_suggests_no_chat_template(run: CliRunner, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    config = json.loads((path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "chat_template.jinja").unlink(missing_ok=True)
    words = ["generate", str(path), "-p", "Hello", "-n", "4", "--backend", "mlx"]
    result = run.invoke(app, words)
    assert result.exit_code == 1
    assert "no chat template; --no-chat-template continues" in result.stderr
    assert run.invoke(app, [*words, "--no-chat-template"]).exit_code == 0


def test_bench_measures_each_size(run: CliRunner) -> None:
    result = run.invoke(app, ["bench", "--backend", "scripted", "--seconds", "0.1", "--json"])
    report = json.loads(result.stdout)
    assert [(figure["kind"], figure["size"]) for figure in report["figures"]] == [
        ("decode", 1),
        ("decode", 4),
        ("decode", 8),
        ("prefill", 128),
        ("prefill", 512),
    ]
    assert all(figure["tokens_per_second"] > 0 for figure in report["figures"])


def test_bench_skips_what_does_not_fit(run: CliRunner) -> None:
    words = [
        "bench",
        "--backend",
        "scripted",
        "--seconds",
        "0.1",
        "--json",
        "--max-batch-size",
        "2",
        "--context",
        "256",
    ]
    figures = json.loads(run.invoke(app, words).stdout)["figures"]
    assert [(figure["kind"], figure["size"]) for figure in figures] == [("decode", 1), ("prefill", 128)]


@pytest.mark.parametrize("context", ["4", "33", "63"])
def test_bench_refuses_a_context_without_decode_steps(run: CliRunner, context: str) -> None:
    result = run.invoke(app, ["bench", "--backend", "scripted", "--seconds", "0.1", "--context", context])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: a context of {context} tokens is too short: give --context 64 or more")


def test_score_prints_the_likelihood_of_each_token_but_the_first(run: CliRunner) -> None:
    result = run.invoke(app, ["score", "-p", "Hello", "--backend", "scripted", "--json"])
    report = json.loads(result.stdout)
    assert len(report["tokens"]) == 5
    assert len(report["log_likelihoods"]) == 4
    assert report["total"] == pytest.approx(sum(report["log_likelihoods"]))
    assert all(value <= 0 for value in report["log_likelihoods"])
    assert report["perplexity"] >= 1


def test_score_prints_a_line_for_each_token(run: CliRunner) -> None:
    result = run.invoke(app, ["score", "-p", "[b]o", "--backend", "scripted"])
    assert result.exit_code == 0
    assert "'['" in result.stdout
    assert "perplexity" in result.stdout
