"""The simulation of many threads: its work is that of the kernels, and its times follow from its costs."""

from dataclasses import replace

import pytest

from bench.kernels.scaling import PACKINGS, SHAPES, Costs, FusedStage, Simulation, layer, matmul, small, step
from workers.iree.kernels.ir.partition import PARTITIONS_PER_THREAD

FREE = Costs(core=1.0, node=1e9, link=1e9, near=0.0, far=0.0, cache_cores=8, wake=0.0, dispatch=0.0)


def run(threads: int, stages: list[FusedStage], costs: Costs = FREE) -> Simulation:
    simulation = Simulation(threads, costs)
    for stage in stages:
        simulation.run(stage)
    return simulation


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_every_tile_is_in_one_partition(threads: int) -> None:
    packing = PACKINGS["int8"]
    stage = matmul(4864, 896, packing, threads)
    assert sum(stage.work) == 304 * packing.tile_bytes(896)
    assert len(stage.work) == min(304, PARTITIONS_PER_THREAD * threads)
    assert sum(small(14, 2 * threads, 3.0).work) == 42.0


def test_one_thread_reads_everything() -> None:
    stages = list(layer(SHAPES[0], PACKINGS["int4"], 1, 256))
    total = sum(size for stage in stages for size in stage.work)
    simulation = run(1, stages)
    assert simulation.end == pytest.approx(total)
    assert simulation.waited == 0
    assert simulation.bytes == total


def test_threads_share_equal_partitions() -> None:
    simulation = run(2, [FusedStage((5.0, 5.0, 5.0, 5.0))])
    assert simulation.ready == [10.0, 10.0]


def test_a_stage_waits_for_its_slowest_thread() -> None:
    simulation = run(2, [FusedStage((10.0, 4.0)), FusedStage((1.0, 1.0))])
    assert simulation.end == 11.0
    assert simulation.waited == 6.0


def test_additions_to_a_counter_happen_one_after_the_other() -> None:
    """Both take at 1 and 2. The first reports at 12 and finds nothing at 13; the second reports at 14, behind the first
    one's look, finds nothing at 15, and sees the end at 16."""
    simulation = run(2, [FusedStage((10.0, 10.0))], replace(FREE, near=1.0))
    assert simulation.end == 16.0


def test_threads_that_wait_delay_the_last_report_unless_they_only_read() -> None:
    costs = replace(FREE, near=1.0)
    adds, reads = (run(8, [FusedStage((100.0,))], replace(costs, additions=each)).end for each in (True, False))
    assert adds == 1 + 100 + (1 + 7) + 1 + 1
    assert reads == 1 + 100 + (1 + 1) + 1 + 1


def test_memory_is_shared_and_the_link_has_half_of_it() -> None:
    costs = Costs(core=10.0, node=40.0, link=10.0, near=0.0, far=0.0, cache_cores=8, wake=0.0, dispatch=0.0)
    assert [costs.rate(threads) for threads in (1, 8)] == [10.0, 5.0]
    both = replace(costs, remote=True)
    assert [both.rate(threads) for threads in (2, 8)] == [10.0, 5.0]
    assert replace(both, link=100.0).rate(16) == 5.0, "two nodes give twice as much"


def test_the_same_step_is_simulated_the_same() -> None:
    costs = Costs(17.0, 200.0, 60.0, 25.0, 100.0, 8, 5000.0, 4000.0)
    ends = {step(SHAPES[0], PACKINGS["int8"], 16, costs, 256).end for _ in range(2)}
    assert len(ends) == 1
