"""Options of commands, and Ctrl-C."""

import subprocess
import sys

from typer.testing import CliRunner

from cli.main import app

INTERRUPTED = """
import atexit, os, typer
from cli.config.options import takes_settings
from cli.config.settings import Settings

app = typer.Typer()

@app.command()
@takes_settings("model")
def compute(settings: Settings) -> None:
    atexit.register(os.abort)  # as the interpreter's shutdown may after an interrupted call to a device
    print("half an ans", end="")
    try:
        raise KeyboardInterrupt
    finally:
        print("wer")

app()
"""


def test_an_interrupted_command_cleans_up_and_skips_the_interpreters_shutdown() -> None:
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (130, "half an answer\n", "")


def test_help_shows_the_defaults_and_the_flag_that_turns_a_switch_off() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    lines = {line.split()[1]: line for line in shown.splitlines() if line.startswith("│ --")}
    assert "<bool>" not in lines["--take-over"] + lines["--prefix-cache"] + lines["--allow-public-workers"]
    assert "--no-prefix-cache" in lines["--prefix-cache"]
    assert "--no-allow" not in shown
    assert "[default: on]" in lines["--prefix-cache"]
    assert "[default: 1]" in lines["--workers"]
    assert "[default: 0]" in lines["--standby"]
