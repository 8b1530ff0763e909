"""When packets leave an impaired link."""

import pytest

from bench.networks.impairment import MAX_QUEUE_S, Direction, Impairment


def times(impairment: Impairment, count: int = 1000, size: int = 1500, every_s: float = 0.0) -> list[float | None]:
    direction = Direction(impairment, 7)
    return [direction.leaves_at(size, number * every_s) for number in range(count)]


def test_without_an_impairment_packets_leave_at_once() -> None:
    assert times(Impairment(), 3, every_s=1.0) == [0.0, 1.0, 2.0]


def test_all_are_delayed_within_the_jitter_and_in_order() -> None:
    found = times(Impairment(delay_s=0.1, jitter_s=0.05))
    assert found == sorted(found, key=lambda at: at or 0.0)
    assert all(at is not None and 0.1 <= at <= 0.15 for at in found)


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_the_share_of_losses_is_that_asked_for(loss: float) -> None:
    assert times(Impairment(loss=loss), 100_000).count(None) / 100_000 == pytest.approx(loss, rel=0.05)


def test_reordered_packets_overtake() -> None:
    found = times(Impairment(delay_s=0.1, reorder=0.25), 10_000)
    assert found.count(0.0) / 10_000 == pytest.approx(0.25, rel=0.05)
    assert found.count(0.1) == 10_000 - found.count(0.0)


def test_the_bandwidth_spreads_packets_until_the_queue_is_full() -> None:
    found = times(Impairment(bits_per_s=1e6))
    sent = [at for at in found if at is not None]
    assert sent[:2] == [pytest.approx(0.012), pytest.approx(0.024)]
    assert sent[-1] == pytest.approx(MAX_QUEUE_S, abs=0.025)
    assert found[len(sent) :] == [None] * (len(found) - len(sent))


def test_a_cut_direction_loses_everything() -> None:
    direction = Direction(Impairment(), 1)
    direction.up = False
    assert direction.leaves_at(100, 0.0) is None


def test_what_is_sent_again_passes_in_the_end_also_while_the_link_is_down() -> None:
    direction = Direction(Impairment(delay_s=0.1, loss=0.5), 7)
    direction.up = False
    found = [direction.passes_at(1500, 0.0, resend_s=0.2) for _ in range(1000)]
    resent = [round((at - 0.1) / 0.2) for at in found]
    assert found == sorted(found)
    assert all(at == pytest.approx(0.1 + 0.2 * times) for at, times in zip(found, resent, strict=True))
    assert max(resent) > 0
