"""Embeddings as a prompt, and sessions, on MLX."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.embeddings_gate import embedding_table, run_embeddings_gate
from tests.workers.mlx.conftest import Load
from tests.workers.session_gate import run_session_gate
from workers.local_model import LocalModel


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "bfloat16"), ("gemma3_text", "float32"), ("granite", "bfloat16"), ("olmo2", "float32")],
)
def test_rows_of_the_own_table_give_what_their_tokens_give(family: str, dtype: Any, tmp_path: Path, load: Load) -> None:
    """Gemma and Granite scale the rows of their table, and the module of OLMo takes no embeddings by itself."""
    path = make_checkpoint(tmp_path, family, dtype=dtype)
    run_embeddings_gate(load(path, dtype=dtype, embeddings=True), embedding_table(path))


def test_a_session_agrees_with_itself(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "llama")
    with LocalModel.load(path, backend="mlx", device="cpu", context=96, speculate="auto", embeddings=True) as model:
        run_session_gate(model, embedding_table(path))
