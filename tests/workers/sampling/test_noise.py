"""Noise: against an independent implementation of Threefry-2x32-20 and its published test vectors."""

import numpy as np

from workers.sampling.noise import COIN, noise


def threefry(counter: tuple[int, int], key: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds on Python integers, as in the paper: rounds, with a key after every fourth."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (counter[0] + keys[0]) % 2**32, (counter[1] + keys[1]) % 2**32
    for turn in range(20):
        distance = (13, 15, 26, 6, 17, 29, 16, 24)[turn % 8]
        x = (x + y) % 2**32
        y = ((y << distance | y >> (32 - distance)) % 2**32) ^ x
        if turn % 4 == 3:
            group = turn // 4 + 1
            x, y = (x + keys[group % 3]) % 2**32, (y + keys[(group + 1) % 3] + group) % 2**32
    return x, y


def test_threefry_matches_the_vectors_published_with_random123() -> None:
    ones = (0xFFFFFFFF, 0xFFFFFFFF)
    assert threefry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    assert threefry(ones, ones) == (0x1CB996FC, 0xBB002BE7)
    assert threefry((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344)) == (0xC4923A9C, 0x483DF7A0)


def test_the_noise_is_threefry_of_the_seed_at_the_position() -> None:
    words = np.random.default_rng(3).integers(0, 1 << 32, (3, 200), dtype=np.uint32)
    words[:, 0], words[:, 1] = 0, 0xFFFFFFFF
    for stream in (0, COIN):
        expected = [threefry((int(p), stream), (int(low), int(high)))[0] for low, high, p in words.T]
        assert noise(np, words[0], words[1], words[2], stream).tolist() == expected


def test_each_bit_of_seed_and_position_changes_about_half_of_the_noise() -> None:
    base = noise(np, *np.zeros((3, 1), np.uint32))
    for word in range(3):
        inputs = np.zeros((3, 32), np.uint32)
        inputs[word] = np.uint32(1) << np.arange(32, dtype=np.uint32)
        flipped = np.bitwise_count(noise(np, *inputs) ^ base)
        assert flipped.min() >= 4
        assert 14 <= flipped.mean() <= 18
