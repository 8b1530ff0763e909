"""docs/protocol.md against the code: each frame, field, type, default, bound and code, none missing and none extra."""

import ast
import re
from enum import StrEnum
from pathlib import Path

import msgspec
import pytest

from protocol import bounds
from protocol.errors import ByeReason, ErrorCode
from protocol.events import Capabilities, Gauges, SharedTier
from protocol.request import TemplateOptions, ToolChoice
from tests.protocol import vocabulary

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
CAPABILITIES = ROOT / "workers" / "process" / "startup" / "served_capabilities.py"
SECTIONS = {
    title.strip(): body
    for title, body in re.findall(r"^###? ([^\n]+)\n(.*?)(?=^###? |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
}
CONSTANTS = {name: value for name, value in vars(bounds).items() if name.isupper()}


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table, without its two heading lines."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def in_numbers(cell: str) -> str:
    """Return a bound as in the code: constants by value, without marks."""
    return re.sub(r"`(\w+)`", lambda name: str(CONSTANTS[name[1]]), cell).replace("-", "", cell == "-")


@pytest.mark.parametrize("struct", vocabulary.structs(), ids=lambda struct: struct.__name__)
def test_every_field_is_on_the_page_as_it_is_in_the_code(struct: type[msgspec.Struct]) -> None:
    stated = [[name, kind, default, in_numbers(bound)] for name, kind, default, bound, _ in rows(struct.__name__)]
    zero = {repr(Gauges()): "all zero", repr(TemplateOptions()): "all nil", repr(ToolChoice()): "auto"} | {
        repr(SharedTier()): "empty"
    }
    actual = [
        [
            f"`{field.name}`",
            vocabulary.type_text(field.type),
            zero.get(vocabulary.default_text(field), vocabulary.default_text(field)),
            vocabulary.bound_text(field.type),
        ]
        for field in vocabulary.fields(struct)
    ]
    assert stated == actual


@pytest.mark.parametrize("struct", vocabulary.structs(), ids=lambda struct: struct.__name__)
def test_every_tag_and_meaning_is_on_the_page(struct: type[msgspec.Struct]) -> None:
    tag = vocabulary.tag(struct)
    assert SECTIONS[struct.__name__].strip().startswith(f"Tag `{tag}`. ") == (tag is not None)
    assert all(meaning.endswith(".") for *_, meaning in rows(struct.__name__))


def test_a_capability_is_set_by_workers_or_reserved() -> None:
    """Those that are true by default hold for every worker."""
    meanings = {name.strip("`"): meaning for name, *_, meaning in rows("Capabilities")}
    defaults = {field.name: field.default for field in vocabulary.fields(Capabilities)}
    calls = [
        node
        for node in ast.walk(ast.parse(CAPABILITIES.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Capabilities"
    ]
    assert calls, "a worker states what it can do"
    stated = {keyword.arg for call in calls for keyword in call.keywords}
    for name, meaning in meanings.items():
        assert meaning.startswith("Reserved: always false") == (name not in stated and not defaults[name]), name


def test_durations_state_their_unit() -> None:
    for struct in vocabulary.structs():
        for name, *_, meaning in rows(struct.__name__):
            assert not name.endswith("_ms`") or "Milliseconds" in meaning, f"{struct.__name__}.{name}"


def test_no_frame_is_on_the_page_that_is_not_in_the_code() -> None:
    tabled = {title for title in SECTIONS if "| Field |" in SECTIONS[title]}
    assert tabled <= {struct.__name__ for struct in vocabulary.structs()}


@pytest.mark.parametrize("codes", [ErrorCode, ByeReason], ids=lambda codes: codes.__name__)
def test_every_code_is_on_the_page(codes: type[StrEnum]) -> None:
    assert [(name, wire) for name, wire, _ in rows(codes.__name__)] == [
        (f"`{code.name}`", f"`{code.value}`") for code in codes
    ]


def test_every_bound_is_on_the_page() -> None:
    assert [(name.strip("`"), type(CONSTANTS[name.strip("`")])(value)) for name, value, _ in rows("Bounds")] == list(
        CONSTANTS.items()
    )


def test_the_version_is_on_the_page() -> None:
    assert f"This page describes version {bounds.PROTOCOL_VERSION}." in SECTIONS["Versions"]


def test_the_example_is_the_golden_one() -> None:
    golden = (Path(__file__).parent / "golden" / "cancel.hex").read_text().strip()
    assert f"`{golden}`" in PAGE
