"""Faults around a runner on MLX: the device finds non-finite logits."""

from pathlib import Path

import pytest

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.workers.mlx.conftest import load_runner
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError
from workers.faults.faulty_runner import with_faults
from workers.faults.plan import Fault
from workers.sampling.sample_spec import SampleSpec

SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=5), Sampling(temperature=0.8, top_p=0.9, top_k=20, seed=5)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "filtered"])
def test_a_row_with_non_finite_logits_fails_alone(tmp_path: Path, sampling: Sampling) -> None:
    runner = load_runner(make_checkpoint(tmp_path))
    one = with_faults(runner, [Fault("nan", calls=0, token=99)])
    tokens = [one.prefill([Chunk(slot, (3, 7), 0, 0)], [SampleSpec(sampling, 2)])[0] for slot in range(2)]
    assert tokens[0] == tokens[1] is not None
    good = DecodeRow(0, 5, 2, 2, SampleSpec(sampling, 3))
    sampled = one.decode([good, DecodeRow(1, 99, 2, 2, SampleSpec(sampling, 3))])
    runner.reset(0)
    runner.prefill([Chunk(0, (3, 7), 0, 0)], [None])
    assert sampled == [*runner.decode([good]), None]
    one.reset(1)
    with pytest.raises(NotFiniteError):
        one.logits(Chunk(1, (3, 99), 0, 0))
