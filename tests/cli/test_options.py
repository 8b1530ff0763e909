"""What every command does with its end."""

import subprocess
import sys

INTERRUPTED = """
import atexit, os, typer
from cli.options import takes_settings
from cli.settings import Settings

app = typer.Typer()

@app.command()
@takes_settings("model")
def compute(settings: Settings) -> None:
    atexit.register(os.abort)  # as the interpreter's end may, when a call to a device was broken off
    print("half an ans", end="")
    try:
        raise KeyboardInterrupt
    finally:
        print("wer")

app()
"""


def test_an_interrupted_command_cleans_up_and_leaves_without_the_interpreters_end() -> None:
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (130, "half an answer\n", "")
