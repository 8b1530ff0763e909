"""The architectures of mlx-lm and how each is served: `python -m tests.docs.tables.mlx_lm` writes them into the page.

`tests.workers.mlx.every` loads a checkpoint of each and compares its tokens with mlx-lm's.
"""

import re
from collections.abc import Iterable
from importlib import metadata

from tests.docs.tables.images import PAGE
from tests.workers.mlx.every.architectures import METAL, REFUSED, UNMADE, architectures
from workers.mlx.families import BATCHED

BEGIN, END = "<!-- made by `python -m tests.docs.tables.mlx_lm` -->\n", "<!-- end -->\n"
BLOCK = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)


def _row(title: str, names: Iterable[str]) -> str:
    return f"| {title} | {', '.join(sorted(names))} |"


def block() -> str:
    """Return the table, of the installed mlx-lm."""
    known = set(architectures())
    alone = known - BATCHED - METAL - set(UNMADE)
    lines = [
        f"| | Modules of mlx-lm {metadata.version('mlx-lm')} |",
        "| --- | --- |",
        _row("several requests at a time", (known & BATCHED) - set(REFUSED)),
        _row("several at a time; refused as mlx-lm's converter writes it, without the biases of routers", REFUSED),
        _row("one request at a time", alone),
        _row("one at a time on a GPU of Apple; refused elsewhere, since mlx-lm has a Metal kernel only", METAL),
        *(_row(f"not tested: {reason}", [name]) for name, reason in UNMADE.items() if name not in BATCHED),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text()
    assert BLOCK.search(page), f"{PAGE} has no place for the table"
    PAGE.write_text(BLOCK.sub(lambda _: BEGIN + block() + END, page))
