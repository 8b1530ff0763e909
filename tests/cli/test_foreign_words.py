"""Flags and commands that users of other servers type: each error names what Baton has instead."""

import pytest
import typer.main
from typer.testing import CliRunner

from cli.main import app
from cli.usage.foreign_words import COMMANDS, FLAGS, MODEL, REASONS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve --max-model-len 4096", "No such option: --max-model-len; use --context"),
        ("serve --max-num-seqs=16", "No such option: --max-num-seqs; use --max-batch-size"),
        ("serve --served-model-name a b", "--served-model-name; use --name"),
        ("serve -m x.gguf", "-m; use the argument MODEL"),
        ("serve -ngl 99", "-ngl; leave it out: all layers are on the one device that --device chooses"),
        ("serve x --port 1 -np 4", "-np; use --max-batch-size"),
        ("serve --jinja", "--jinja; leave it out"),
        ("serve -tp 2", "-tp; a model is not split over devices"),
        ("generate -p hi --model x", "--model; use the argument MODEL"),
        ("run x --verbose", "--verbose; use --stats"),
        ("generate -p hi --temp 0", "--temp; use --temperature"),
        ("ps --port 8001", "--port; use --url"),
        ("admin workers --port 8001", "--port; use --url"),
        ("serve --prot 1", "No such option: --prot (Possible options: "),
        ("serve -z", "No such option: -z"),
        ("chaos --jinja", "No such option: --jinja"),
        ("stop", "No such command 'stop'; use `baton admin unload` for a model"),
        ("show x", "No such command 'show'; use `baton inspect`"),
        ("help", "No such command 'help'; use `baton --help`"),
        ("admin start", "No such command 'start'."),
        ("serv", "No such command 'serv'. Did you mean 'serve'?"),
    ],
)
def test_the_error_names_what_to_use_instead(words: str, message: str) -> None:
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, words.split())
    assert result.exit_code == 2
    assert message in result.stderr


def test_every_counterpart_is_a_flag_or_a_command() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    flags = {flag for each in commands["serve"].params for flag in (*each.opts, *each.secondary_opts)}
    others = {flag for name in ("chat", "generate", "run") for each in commands[name].params for flag in each.opts}
    assert {each for found in FLAGS.values() for each in found} <= flags | others | {MODEL}
    assert not FLAGS.keys() & REASONS.keys()
    assert not REASONS.keys() & flags
    assert not COMMANDS.keys() & commands.keys()
