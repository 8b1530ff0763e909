from pathlib import Path

from bench.measurement.limits import Work, multiply_adds
from bench.measurement.peak import Peak
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig


def test_a_step_takes_as_long_as_the_slower_of_the_two() -> None:
    work = Work(read=100.0, multiply_adds=60.0)
    assert (work.seconds(10.0, 6.0), work.bound(10.0, 6.0)) == (10.0, "memory")
    assert (work.seconds(10.0, 3.0), work.bound(10.0, 3.0)) == (20.0, "arithmetic")


def test_multiply_adds_are_those_of_the_matrices_and_of_attention(tmp_path: Path) -> None:
    c = ModelConfig.from_dir(make_checkpoint(tmp_path))
    width = c.heads * c.head_dim
    layer = c.hidden_size * (2 * width + 2 * c.kv_heads * c.head_dim + 3 * c.ffn)
    head = c.vocab_size * c.hidden_size
    assert multiply_adds(c, 3, 10, 2) == 3 * c.layers * (layer + 2 * width * 10) + 2 * head


def test_the_peak_is_measured(tmp_path: Path) -> None:
    peak = Peak(1, tmp_path)
    try:
        # Any CPU does more than a multiply-add for every ten cycles of the slowest clock, and none a million a cycle.
        assert 1e8 < peak.measure(passes=1) < 1e15
    finally:
        peak.close()
