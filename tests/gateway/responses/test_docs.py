"""`docs/http.md` knows every field of the Responses API."""

from pathlib import Path

import pytest

from gateway.responses.items.item import FIELDS
from gateway.responses.request.schema import ResponsesBody
from gateway.responses.unsupported import PARTS, RESPONSES_OPTIONS

TEXT = (Path(__file__).parents[3] / "docs" / "http.md").read_text().partition("## Responses API\n")[2]
NAMES = {*ResponsesBody.__struct_fields__, *RESPONSES_OPTIONS, *PARTS, *FIELDS} - {"summary_text"}


@pytest.mark.parametrize("name", sorted({*NAMES, *(field for fields in FIELDS.values() for field in fields)}))
def test_every_name_is_described(name: str) -> None:
    assert f"`{name}`" in TEXT
