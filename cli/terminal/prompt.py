"""The prompt of a command: what the flag says, or all of standard input."""

import sys

from cli.config.errors import InvalidOption
from protocol.bounds import MAX_TEXT


def read_prompt(prompt: str) -> str:
    """The text of `--prompt`, where `-` is standard input. Raises `InvalidOption` for one that no model could take."""
    if prompt == "-":
        # A file may hold anything; what is not UTF-8 is replaced, as a tokenizer would.
        text = sys.stdin.buffer.read(4 * MAX_TEXT + 4).decode("utf-8", "replace")
    else:
        text = prompt.encode("utf-8", "replace").decode()
    if not text:
        raise InvalidOption("--prompt: is empty")
    if len(text) > MAX_TEXT:
        raise InvalidOption(f"--prompt: is over {MAX_TEXT} characters")
    return text
