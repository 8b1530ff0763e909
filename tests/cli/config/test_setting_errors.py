"""Wrong values of every setting, from every source: the error names the source, what is allowed and the value."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
from typer.testing import CliRunner

from cli.config import allowed_values
from cli.config.panels.field import ENGINE, JOINING, MODEL, PLACEMENT
from cli.config.settings import Settings, flag, of_panels
from cli.config.sources import SECRETS, InvalidSettings, load
from cli.main import app

LIBRARY_WORDS = re.compile(
    r"nput should|pydantic|https?:|\bvalid\b|unable to|type=|Traceback|Error:|<\w|"
    r"\b(?:int|float|str|bool|tuple|dict|NoneType)\b"
)
"""Words of pydantic, Click and Python about wrong values."""


pytestmark = pytest.mark.usefixtures("no_settings")


def wrong_values(name: str) -> Iterator[Any]:
    """Values that a line of the file can have and the setting cannot."""
    field = Settings.model_fields[name]
    bounds = {key: getattr(each, key) for each in field.metadata for key in ("ge", "le") if hasattr(each, key)}
    if get_origin(field.annotation) is Literal:
        yield from ("nonsense", "", 5, True, ["auto"])
    elif get_origin(field.annotation) is tuple:
        yield from (5, True, [5], {"a": 1})
    elif field.annotation is bool:
        yield from ("maybe", "", 5, [True])
    elif field.annotation in (int, float):
        yield from ("many", "", "nan", True, [1], {"a": 1}, bounds["ge"] - 1, bounds["le"] * 2)
    else:
        yield from (5, 0.5, True, ["a"], {"a": 1})


def wrong_texts(name: str) -> Iterator[str]:
    """Texts that a flag or a variable can have and the setting cannot."""
    for value in wrong_values(name):
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            text = str(value)
            kind = Settings.model_fields[name].annotation
            if text and get_origin(kind) is not tuple and kind is not str and (kind, text) != (bool, "5"):
                yield text
    if Settings.model_fields[name].annotation is bool:
        yield "5"


def check(message: str, where: str, name: str, shown: str) -> None:
    allowed = allowed_values.of_setting(Settings.model_fields[name])
    if name in SECRETS:
        assert message == f"{where}: must be {allowed}; the given value is a key and is not shown"
    else:
        assert message == f"{where}: must be {allowed}, not {shown}"
    assert not LIBRARY_WORDS.search(message)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_wrong_line_of_the_file(name: str) -> None:
    for value in wrong_values(name):
        text = "{a = 1}" if isinstance(value, dict) else json.dumps(value)
        Path("baton.toml").write_text(f"{name} = {text}\n")
        with pytest.raises(InvalidSettings) as error:
            load({})
        inner = 5 if value == [5] else value  # an entry of a list is shown, not the list
        check(str(error.value), f"baton.toml: {name}", name, allowed_values.shown(inner))


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if list(wrong_texts(name))])
def test_a_wrong_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in wrong_texts(name):
        monkeypatch.setenv(f"BATON_{name.upper()}", text)
        with pytest.raises(InvalidSettings) as error:
            load({})
        check(str(error.value), f"BATON_{name.upper()}", name, repr(text))


FLAGS = [
    name
    for name in Settings.model_fields
    if name != "model" and Settings.model_fields[name].annotation is not bool and list(wrong_texts(name))
]


@pytest.mark.parametrize("name", FLAGS)
def test_a_wrong_flag(name: str) -> None:
    command = "worker" if name in of_panels(MODEL, ENGINE, JOINING) else "serve"
    command = "scale" if name in of_panels(PLACEMENT) else command
    for text in {*list(wrong_texts(name))[::4]}:
        result = CliRunner().invoke(app, [command, f"{flag(name)}={text}"])
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        check(json.loads(line)["problem"], flag(name), name, repr(text))


@pytest.mark.parametrize("name", ["name", "host"])
def test_a_variable_that_is_not_utf8(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"BATON_{name.upper()}", "caf\udce9")
    with pytest.raises(InvalidSettings, match=f"^BATON_{name.upper()}: must be UTF-8") as error:
        load({})
    assert not LIBRARY_WORDS.search(str(error.value))


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(InvalidSettings) as error:
        load({"port": "x" * 10_000})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'name = "caf\xe9"', "baton.toml is not TOML: byte 12 is not UTF-8"),
        (b"x = " + b"[" * 5000, "baton.toml is nested too deeply"),
        (b"port = " + b"1" * 5000, "baton.toml is not TOML: it has a number of too many digits"),
        (b"port = 0x" + b"f" * 5000, "baton.toml: port: must be a whole number from 0 to 65535, not a number of many"),
    ],
    ids=["not-utf8", "nested", "digits", "hexadecimal"],
)
def test_a_file_that_cannot_be_read_as_toml(content: bytes, message: str) -> None:
    Path("baton.toml").write_bytes(content)
    with pytest.raises(InvalidSettings) as error:
        load({})
    assert str(error.value).startswith(message)


def test_a_path_of_an_unknown_user_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "--lora-dir: ~no-such-user/b: there is no such user, or it has no home"
    with pytest.raises(InvalidSettings, match=f"^{problem}"):
        load({"lora_dirs": ["/a", "~no-such-user/b"]})
    monkeypatch.setenv("BATON_API_KEYS_FILE", "~no-such-user/keys")
    with pytest.raises(InvalidSettings, match=r"^BATON_API_KEYS_FILE: ~no-such-user/keys: there is"):
        load({})
