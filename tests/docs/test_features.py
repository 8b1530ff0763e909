"""The page of features by backend and device agrees with the code."""

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")

from tests.docs.features import BLOCK, PAGE, block
from tests.docs.tables import architectures, images, mlx_lm
from tests.families import FAMILIES

SAMPLE = ("granitemoe", "qwen3", "qwen3_5_text")


@pytest.mark.exhaustive
def test_the_page_has_the_table_that_the_code_makes() -> None:
    stated = BLOCK.search(PAGE.read_text())
    assert stated
    assert stated[1] == block(), "`python -m tests.docs.features` writes it"


@pytest.mark.parametrize(
    "families", [SAMPLE, pytest.param(tuple(FAMILIES), marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
def test_the_page_has_the_architectures_that_the_code_serves(families: tuple[str, ...]) -> None:
    stated = architectures.BLOCK.search(PAGE.read_text())
    assert stated
    rows = set(stated[1].splitlines())
    missing = [line for line in architectures.block(families).splitlines() if line not in rows]
    assert not missing, "`python -m tests.docs.tables.architectures` writes them"
    if families != SAMPLE:
        assert len(rows) == len(FAMILIES) + 2


def test_the_page_has_the_architectures_of_mlx_lm() -> None:
    stated = mlx_lm.BLOCK.search(PAGE.read_text())
    assert stated
    assert stated[1] == mlx_lm.block(), "`python -m tests.docs.tables.mlx_lm` writes it"


def test_the_page_has_the_families_with_images() -> None:
    stated = images.BLOCK.search(images.PAGE.read_text())
    assert stated
    assert stated[1] == images.block(), "`python -m tests.docs.tables.images` writes it"
