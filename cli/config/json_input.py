"""JSON that a user gives as a file or on the command line."""

import json
from pathlib import Path
from typing import Any, NoReturn

from cli.config.errors import InvalidOption

MAX_BYTES = 4 << 20


def read_json(option: str, path: str) -> Any:
    """Return the value of a JSON file. Raises `InvalidOption` naming the option."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a name with a null byte
        reason = error.strerror if isinstance(error, OSError) else "it is not the name of a file"
        raise InvalidOption(f"{option}: {path} cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise InvalidOption(f"{option}: {path} has over {MAX_BYTES} bytes")
    try:
        return parse_json(option, data.decode(), path)
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{option}: {path} is not UTF-8 at byte {error.start + 1}") from error


def parse_json(option: str, text: str, name: str) -> Any:
    """Return the value of a JSON text. Raises `InvalidOption`, which calls the text `name`."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidOption(f"{option}: {name} is not JSON; see line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise InvalidOption(f"{option}: {name} is nested too deeply") from error
    except ValueError as error:
        raise InvalidOption(f"{option}: {name} has a number that JSON does not have, or of too many digits") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
