"""The modules of each family that adapters may change, as the operations guide lists them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from tests.families import FAMILIES
from tests.workers.checkpoints.lora.lora_files import make_lora
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.lora.adapted_matrices import adaptable_modules, adapter_stacks, read_adapters

DOCUMENT = Path(__file__).parents[4] / "docs/operations/adapters.md"
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`[\w.]+`(?:, )?)+) \| (.*) \|$", re.MULTILINE)
LAYERS = 4


def listed() -> dict[str, set[str]]:
    _, _, after = DOCUMENT.read_text().partition("\n### Modules of each family\n")
    section, _, _ = after.partition("\n#")
    return {
        family: set(re.findall(r"`([\w.]+)`", modules))
        for families, modules, _ in ROW.findall(section)
        for family in re.findall(r"`(\w+)`", families)
    }


def linear_modules(path: Path) -> Iterator[str]:
    """The modules of the layers of a checkpoint whose weights are matrices."""
    for name, tensor in dict(open_weights(path)).items():
        if name.endswith(".weight") and tensor.ndim == 2 and re.search(r"(layers|h)\.\d+\.", name):
            yield name.removesuffix(".weight")


def within_layer(module: str) -> str:
    return re.split(r"(?:layers|h)\.\d+\.", module)[-1]


def test_the_table_has_the_modules_of_every_family(tmp_path: Path) -> None:
    table, found = listed(), {}
    for family in sorted(FAMILIES):
        path = make_checkpoint(tmp_path / family, family, layers=LAYERS)
        places, linear = adaptable_modules(ModelConfig.from_dir(path)), set(linear_modules(path))
        assert places.keys() <= linear, family
        found[family] = {within_layer(each) for each in places}
    assert table == found


@pytest.mark.parametrize(
    ("family", "module"),
    [
        ("qwen3_moe", "mlp.gate"),
        ("qwen3_moe", "mlp.experts.0.down_proj"),
        ("deepseek_v3", "self_attn.kv_a_proj_with_mqa"),
        ("qwen3_next", "linear_attn.out_proj"),
        ("nemotron_h", "mixer.in_proj"),
        ("lfm2", "conv.in_proj"),
    ],
)
def test_other_modules_are_refused_by_name(tmp_path: Path, family: str, module: str) -> None:
    path = make_checkpoint(tmp_path / "model", family, layers=LAYERS)
    whole = next(each for each in linear_modules(path) if within_layer(each) == module)
    adapter = make_lora(tmp_path / "one", path, modules={whole: (8, 8)})
    with pytest.raises(CheckpointError, match=rf"adapters of {family} may change .*, not {re.escape(whole)}"):
        adapter_stacks(ModelConfig.from_dir(path), read_adapters([("one", adapter)], 64))
