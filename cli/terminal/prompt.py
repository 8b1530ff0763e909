"""The prompt of a command, from its flag or from standard input."""

import sys

from cli.config.errors import InvalidOption
from protocol.bounds import MAX_TEXT


def read_prompt(prompt: str) -> str:
    """Return the text of `--prompt`, or standard input for `-`. Raises `InvalidOption` if it is empty or too long."""
    if prompt == "-":
        # Invalid UTF-8 is replaced, as a tokenizer would do.
        text = sys.stdin.buffer.read(4 * MAX_TEXT + 4).decode("utf-8", "replace")
    else:
        text = prompt.encode("utf-8", "replace").decode()
    if not text:
        raise InvalidOption("--prompt: is empty")
    if len(text) > MAX_TEXT:
        raise InvalidOption(f"--prompt: is longer than {MAX_TEXT} characters; shorten it")
    return text
