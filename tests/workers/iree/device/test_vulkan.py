"""A device that is not the CPU's: Vulkan, on whatever driver is here, such as the one on a CPU that browsers bring."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.gate import run_gate
from tests.workers.iree.conftest import Load
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.device.device import Device, DeviceError, available_drivers
from workers.iree.probe import probe_driver
from workers.sampling.sample_spec import SampleSpec

BROWSERS = ("/usr/lib/chromium", "/usr/lib/chromium-browser", "/opt/google/chrome", "/opt/chromium.org/chromium")
"""Folders where packages put browsers: with SwiftShader, which computes on the CPU, and the loader that finds it."""


@pytest.fixture(scope="module", autouse=True)
def _vulkan() -> Iterator[None]:
    """Whatever Vulkan finds here, or else what a browser brought."""
    if "vulkan" not in available_drivers():
        pytest.skip("this IREE runtime has no driver for Vulkan")
    with pytest.MonkeyPatch.context() as patch:
        if not opens():
            folder = next((Path(each) for each in BROWSERS if (Path(each) / "vk_swiftshader_icd.json").exists()), None)
            if folder is None:
                pytest.skip("no Vulkan loader with a driver, and no browser that has them")
            patch.setenv("IREE_HAL_VULKAN_LIBVULKAN_PATH", str(folder))
            patch.setenv("VK_ICD_FILENAMES", str(folder / "vk_swiftshader_icd.json"))
            if not opens():
                pytest.skip(f"the driver in {folder} does not open")
        yield


def opens() -> bool:
    try:
        Device("vulkan", 0).close()
    except DeviceError:
        return False
    return True


def test_gate(load: Load, tmp_path: Path) -> None:
    """One graph of each kind; what no graph does is done by numpy, with logits that go to the host and back."""
    path = make_checkpoint(tmp_path / "model", layers=1)
    runner = load(path, device="vulkan", slots=3, context=32)
    prompt = Chunk(0, (5, 6, 7, 8, 9), 0, 0)
    (token,) = runner.prefill([prompt], [SampleSpec(Sampling(), 5)])
    assert token == runner.logits(prompt).argmax(-1)[-1]
    row = DecodeRow(0, 11, 5, 5, SampleSpec(Sampling(temperature=0.8, seed=3), 6))
    (sampled,) = runner.decode([row])
    runner.copy_prefix(0, 2, 5)
    assert runner.decode([replace(row, slot=2)]) == [sampled]
    for slot in (0, 2):
        runner.reset(slot)
    report = run_gate(lambda: runner, requests=8, max_tokens=5, resume=False)
    assert (report.requests, report.most_active) == (8, 3)


def test_what_it_cannot_compute_is_refused(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", dtype="bfloat16", layers=1)
    with pytest.raises(DeviceError, match=r"device: 'vulkan' cannot compute in bfloat16: .* set --dtype .*float32"):
        load(path, device="vulkan", dtype="auto")


def test_the_doctor_finds_it() -> None:
    line = probe_driver("vulkan")
    assert (line.device, line.works) == ("vulkan", True), line.detail
