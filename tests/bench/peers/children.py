"""A child process with a scripted engine, in place of one of `bench/peers/children/`."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
ENGINE = f"""
import atexit, sys
sys.path.insert(0, {str(ROOT)!r})
from bench.peers.children.serve import Generation, serve


class Engine:
    def __init__(self, settings):
        print("a library writes to stdout while it loads", flush=True)
        if "refuse" in settings:
            atexit.register(print, "a library says goodbye", file=sys.stderr)
            raise ValueError(settings["refuse"])
        self.first = settings["first"]

    def generate(self, prompts, tokens):
        print("and while it runs", flush=True)
        if len(prompts) > 4:
            sys.exit("too many prompts")
        generation = Generation([], [[self.first + at for at in range(tokens)] for _ in prompts])
        generation.steps = [(1.0, 0), (1.0, len(prompts))] + [(0.25, len(prompts))] * (tokens - 1)
        return generation


serve(Engine)
"""


def write_child(folder: Path) -> Path:
    """The script; its engine makes tokens that count up from the setting `first`, and takes at most 4 prompts."""
    file = folder / "child.py"
    file.write_text(ENGINE)
    return file
