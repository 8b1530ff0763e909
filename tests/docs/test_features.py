"""The page of features by backend and device agrees with the code."""

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")

from tests.docs.features import BLOCK, PAGE, block


def test_the_page_has_the_table_that_the_code_makes() -> None:
    stated = BLOCK.search(PAGE.read_text())
    assert stated
    assert stated[1] == block(), "`python -m tests.docs.features` writes it"
