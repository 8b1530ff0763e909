"""The page on Baton as a library: its code runs, one block after the other."""

import functools
import re
from pathlib import Path
from typing import Any
from unittest import mock

from workers.local_model import LocalModel

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


def test_the_code_of_the_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, Any] = {}
    scripted = functools.partial(LocalModel.load, backend="scripted")
    with mock.patch.object(LocalModel, "load", scripted):
        exec(blocks[0], names)
    with names["model"] as model:
        for block in blocks[1:]:
            exec(block, names)
        assert model.stats().requests == 4
        assert names["answer"].stats.completion_tokens == 32
