"""Runs `baton` in the process of the tests: what it imports costs half a second of a core in a process of its own."""

import subprocess

from typer.testing import CliRunner

from cli.main import app


def baton(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, with output that is no terminal, and return what a process would. Raises what the
    command does not catch."""
    ended = CliRunner(env={"COLUMNS": "120"}).invoke(app, words, env=environment)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return subprocess.CompletedProcess(words, ended.exit_code, ended.stdout, ended.stderr)
