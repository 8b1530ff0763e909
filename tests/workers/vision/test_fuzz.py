"""Mutated image files are decoded or refused, within the stated memory, and quickly."""

import random
import resource
import subprocess
import sys
import time
import zlib

import pytest
from msgspec.structs import replace

from protocol.request import Image, ImageFormat
from tests.workers.vision.image_files import as_file, picture
from workers.vision.decode import decode, upright_size
from workers.vision.image_refused import ImageRefused

FORMATS: tuple[ImageFormat, ...] = ("gif", "jpeg", "png", "webp")
SECONDS = 1.0
"""For one file of 96 x 64 pixels, whatever is in it."""
MEMORY = 128 << 20
"""Address space beyond that of the process, for files of that size."""
MANY = 2000


def mutants(format: ImageFormat, count: int) -> list[Image]:
    """Return files with changed, removed, repeated and random bytes."""
    rng = random.Random(f"{format} {count}")
    sources = [as_file(picture(96, 64, mode), format) for mode in ("RGB", "L")]
    sources.append(as_file(picture(96, 64), format, **({"progressive": True} if format == "jpeg" else {})))
    made = []
    for number in range(count):
        source = sources[number % len(sources)]
        data = bytearray(source.data)
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(min(64, len(data)))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.choice((1, 4, 64))]
            elif kind == 2:
                data[at:at] = data[at : at + 64]
            else:
                data[at : at + 4] = rng.randbytes(4)
            data = data or bytearray(b"\0")
        fixed = with_checksums(bytes(data)) if format == "png" and rng.random() < 0.7 else bytes(data)
        made.append(replace(source, data=fixed))
    return made


def with_checksums(data: bytes) -> bytes:
    """Return a PNG whose chunks have right checksums, so that what is in them is decoded."""
    fixed, at = bytearray(data), 8
    while at + 12 <= len(fixed):
        end = at + 8 + int.from_bytes(fixed[at : at + 4], "big")
        if end + 4 > len(fixed):
            break
        fixed[end : end + 4] = zlib.crc32(fixed[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(fixed)


def check(image: Image) -> bool:
    """Decode a file and return True, or False if it is refused. Anything else fails."""
    start = time.process_time()
    try:
        size = upright_size(image)
        picture = decode(image)
        assert picture.mode == "RGB"
        assert sorted(picture.size) == sorted(size)
        return True
    except ImageRefused:
        return False
    finally:
        assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_some_mutated_files(format: ImageFormat) -> None:
    found = [check(each) for each in mutants(format, 40)]
    assert False in found
    assert True in found or format == "png"  # in which a checksum covers the pixels


@pytest.mark.exhaustive
@pytest.mark.parametrize("format", FORMATS)
def test_many_mutated_files_in_bounded_memory(format: ImageFormat) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-m", __name__, format, str(MANY)], check=True, timeout=100)


def main(format: ImageFormat, count: int) -> None:
    files = mutants(format, count)
    with open("/proc/self/statm") as stream:
        size = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    decoded = sum(check(each) for each in files)
    print(f"{format}: {decoded} of {count} decoded")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))  # type: ignore[arg-type]
