from bench.depth import STEPS, depths


def test_depths_double_and_end_where_the_steps_still_fit() -> None:
    assert depths(1024) == [256, 512, 1024 - STEPS - 16]
    assert depths(32768)[:3] == [256, 512, 1024]
    assert depths(32768)[-2:] == [16384, 32768 - STEPS - 16]
