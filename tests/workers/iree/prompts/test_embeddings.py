"""Embeddings as a prompt, and sessions, on IREE."""

from pathlib import Path

from tests.workers.embeddings_gate import embedding_table, run_embeddings_gate
from tests.workers.iree.conftest import Load
from tests.workers.session_gate import run_session_gate
from workers.engine.engine import BatchEngine
from workers.iree.build.graph_list import EMBEDDED
from workers.iree.runner import IreeRunner
from workers.local_model import LocalModel


def test_rows_of_the_own_table_give_what_their_tokens_give(load: Load, checkpoint: Path) -> None:
    table = embedding_table(checkpoint)
    runner = load(embeddings=True)
    run_embeddings_gate(runner, table)
    with LocalModel(BatchEngine(runner, max_queue=0, step_tokens=64), None) as model:
        run_session_gate(model, table)


def test_a_model_without_embeddings_has_no_graph_for_them(runner: IreeRunner) -> None:
    names = [name for group in runner.graphs.builder.plan.everything() for name in group]
    assert not [name for name in names if name.startswith(EMBEDDED)]
    assert runner.capabilities.embedding_width == 0
