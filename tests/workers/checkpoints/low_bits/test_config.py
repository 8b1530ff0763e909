"""`quantization_config` of FP8, compressed-tensors, ModelOpt and bitsandbytes: what is read, ignored and refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.checkpoints.low_bits.low_bit_files import BITSANDBYTES, FORMATS, FP8, NVFP4_PLAN, compressed
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.low_bits.config import LowBits, parse_low_bits
from workers.checkpoints.quantization_config import parse_quantization


def parse(plan: dict[str, Any]) -> LowBits:
    found = parse_low_bits(Path("config.json"), {"quantization_config": plan})
    assert found is not None
    return found


MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
PACKED = compressed("pack-quantized", 4, "int", "group", group_size=32)
BLOCKS = compressed("float-quantized", 8, "float", "block", block_structure=[128, 128])
REFUSED: list[tuple[dict[str, Any], str]] = [
    (FP8 | {"fmt": "e5m2"}, "fmt: 'e5m2' is not supported, only 'e4m3'"),
    (FP8 | {"activation_scheme": "none"}, "activation_scheme: 'none'"),
    (FP8 | {"weight_block_size": [128]}, r"weight_block_size: \[128\] is not two positive integers"),
    (FP8 | {"weight_block_size": [0, 128]}, r"weight_block_size: \[0, 128\]"),
    (PACKED | {"format": "marlin-24"}, "format: 'marlin-24' is not supported"),
    (PACKED | {"format": None}, "format: None is not supported"),
    (PACKED | {"quantization_status": "frozen"}, "quantization_status: 'frozen'"),
    (PACKED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: is not supported"),
    (PACKED | {"transform_config": {"config_groups": {}}}, "transform_config: is not supported"),
    (PACKED | {"config_groups": {}}, "config_groups: has 0 groups"),
    (PACKED | {"config_groups": []}, "config_groups: is not an object"),
    (PACKED | {"config_groups": {"a": {}}}, "config_groups.a.weights: is missing"),
    (PACKED | {"config_groups": PACKED["config_groups"] | {"b": BLOCKS["config_groups"]["group_0"]}}, "b.weights.type"),
    (compressed("pack-quantized", 3, "int", "channel"), "weights.num_bits: 3 is not supported, only 4 or 8"),
    (compressed("pack-quantized", 4, "int", "block"), "weights.strategy: 'block'"),
    (compressed("pack-quantized", 4, "int", "group"), "weights.group_size: None is not a positive integer"),
    (compressed("pack-quantized", 4, "int", "channel", dynamic=True), "weights.dynamic: True"),
    (compressed("pack-quantized", 4, "int", "channel", actorder="random"), "weights.actorder: 'random'"),
    (compressed("int-quantized", 8, "int", "channel", symmetric=False), "weights.symmetric: False"),
    (compressed("float-quantized", 8, "float", "block"), "weights.block_structure: is missing"),
    (compressed("mxfp4-pack-quantized", 4, "float", "group", group_size=16), "weights.group_size: 16"),
    (compressed("nvfp4-pack-quantized", 4, "float", "tensor_group", group_size=32), "weights.group_size: 32"),
    (MODELOPT | {"quant_algo": "NVFP4_AWQ"}, "quant_algo: 'NVFP4_AWQ' is not supported, only 'FP8' or 'NVFP4'"),
    (MODELOPT | {"group_size": 32}, "group_size: 32"),
    (BITSANDBYTES | {"load_in_4bit": False}, "load_in_4bit: is False, and load_in_8bit is False"),
    (BITSANDBYTES | {"load_in_8bit": True}, "load_in_4bit: is True, and load_in_8bit is True"),
    (BITSANDBYTES | {"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type: 'int4'"),
    (BITSANDBYTES | {"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage: 'bfloat16'"),
]


@pytest.mark.parametrize(("plan", "words"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_refused_by_name(plan: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=f"quantization_config.*{words}"):
        parse(plan)
    with pytest.raises(CheckpointError, match=words):  # as config.json is read
        parse_quantization(Path("config.json"), {"quantization_config": plan})


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_has_a_layout(name: str) -> None:
    found = parse(FORMATS[name][0])
    assert found.layouts
    assert parse_quantization(Path("config.json"), {"quantization_config": FORMATS[name][0]}) is None


def test_activations_and_caches_are_named_as_not_followed() -> None:
    group = NVFP4_PLAN["config_groups"]["group_0"] | {"input_activations": {"num_bits": 4}}
    plan = NVFP4_PLAN | {"kv_cache_scheme": {"num_bits": 8}, "config_groups": {"group_0": group}}
    assert parse(plan).ignored == ("kv_cache_scheme", "input_activations")
    assert parse(MODELOPT | {"kv_cache_scheme": {"num_bits": 8}}).ignored == ("activations", "kv_cache_scheme")


def test_groups_of_one_kind_of_weights_are_read() -> None:
    group = BLOCKS["config_groups"]["group_0"]
    assert len(parse(BLOCKS | {"config_groups": {"a": group, "b": group}}).layouts) == 1
