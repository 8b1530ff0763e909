"""The table: its columns, and the page that has it."""

import re
from pathlib import Path

from tests.docs.clients import anthropic_api, ollama_api, openai_api, responses_api
from tests.docs.clients.features import FEATURES

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
BEGIN, END = "<!-- made by `python -m tests.docs.clients` -->\n", "<!-- end -->\n"
BLOCK = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)

COLUMNS = (*openai_api.COLUMNS, *responses_api.COLUMNS, *anthropic_api.COLUMNS, *ollama_api.COLUMNS)
"""Columns of every dialect. One more dialect is one more module with its columns."""


def block() -> str:
    """The tables, one for each group of features."""
    parts = []
    for group, features in FEATURES.items():
        rows = [
            [group, *(column.title for column in COLUMNS)],
            ["---"] * (len(COLUMNS) + 1),
            *([feature, *(column.cell(feature).text for column in COLUMNS)] for feature in features),
        ]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts) + "\n"


def write() -> None:
    """Write the tables into the page."""
    PAGE.write_text(BLOCK.sub(lambda _: BEGIN + block() + END, PAGE.read_text()))
