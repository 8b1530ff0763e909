"""The number of partitions of a kernel's work."""

from workers.iree.kernels.ir.partition import PARTITIONS_PER_THREAD, partition_count


def test_a_products_work_is_shared_so_that_threads_end_together() -> None:
    assert partition_count(56, 2) == PARTITIONS_PER_THREAD * 2  # one at a time for each of two threads
    assert partition_count(5, 2) == 5  # no more than there is work for
