"""A worker whose model only mlx-lm describes: what it says of itself, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.checkpoints import make_checkpoint
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.lone_config import LoneConfig
from workers.errors import LoadRefused
from workers.inspection.servable import Servable
from workers.process.backends import served_config
from workers.process.loading import load
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe, hello
from workers.process.startup.footprint import Footprint

pytest.importorskip("mlx_lm", reason="needs mlx-lm")


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.workers.mlx.alone.lone_checkpoints import make_lone_checkpoint

    return make_lone_checkpoint(tmp_path_factory.mktemp("lone"), "internlm3", max_position_embeddings=8192)


def spec_of(path: Path, **fields: Any) -> WorkerSpec:
    return scripted(**{"backend": "mlx", "device": "cpu", "model_path": str(path), "max_batch_size": 8, **fields})


def config_with(path: Path, **fields: Any) -> Path:
    """Write a config.json alone."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(fields))
    return path


def test_it_has_one_slot_and_says_why(lone: Path) -> None:
    described = describe(spec_of(lone, context=4000))
    assert (described.slots_bound, described.context, described.model_context) == ("model", 4000, 8192)
    greeting = hello(spec_of(lone), described, 1)
    assert (greeting.slots, greeting.slots_bound) == (1, "model")
    one = describe(spec_of(lone, max_batch_size=1))
    assert one.slots_bound == ""
    assert hello(spec_of(lone, max_batch_size=1), one, 1).slots == 1
    footprint = Footprint.of(spec_of(lone, context=100))
    assert (footprint.alone, footprint.rows) == (True, 100)
    assert footprint.weights == (lone / "model.safetensors").stat().st_size
    assert Servable.of(spec_of(lone, context=100)) == Servable("mlx", "internlm3", 100, alone=True)


@pytest.mark.parametrize("named", [{"model_type": "mamba2"}, {"architectures": ["Mamba2ForCausalLM"]}], ids=str)
def test_on_another_backend_the_error_says_where_it_is_served(tmp_path: Path, named: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"is not supported, .*; --backend mlx also serves the other models"):
        describe(spec_of(config_with(tmp_path / "model", **named), backend="iree", device=""))


def test_it_is_loaded_and_logs_that_it_runs_alone(lone: Path) -> None:
    with capture_logs() as logs:
        loaded = load(spec_of(lone, context=64, speculate="auto"), lambda *progress: None)
    (entry,) = [each for each in logs if each["event"] == "model_runs_alone"]
    assert (entry["slots"], entry["max_batch_size"]) == (1, 8)
    assert loaded.tokenizer is not None
    assert loaded.context == 64
    assert "speculation_off" in [each["event"] for each in logs]
    loaded.engine.close()


def test_a_described_family_is_batched(tmp_path: Path) -> None:
    described = describe(spec_of(make_checkpoint(tmp_path / "model")))
    assert described.slots_bound == ""


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kv_dtype": "int8"}, "kv_dtype: int8 is not supported for internlm3, which only mlx-lm describes"),
        ({"window_cache": "ring"}, "window_cache: ring is not supported for internlm3"),
        ({"embeddings": True}, "embeddings: is not supported for internlm3"),
        ({"draft_model": "."}, "draft_model: internlm3 is described by mlx-lm alone"),
        ({"context": 9000}, "max_position_embeddings: is 8192, less than the context of 9000"),
        ({"context": 1}, "context: 1 token leaves no room"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_has_no_effect_is_refused(lone: Path, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(LoadRefused, match=problem):
        describe(spec_of(lone, **fields))


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('this code has run')\n")
    path = config_with(tmp_path, model_type="internlm3", model_file="evil.py")
    with pytest.raises(CheckpointError, match=r"model_file: names code that comes with the checkpoint"):
        served_config(spec_of(path))
    code = {"AutoModelForCausalLM": "evil.EvilForCausalLM"}
    path = config_with(tmp_path, model_type="evil", auto_map=code)
    with pytest.raises(CheckpointError, match=r"auto_map: names code that comes with the checkpoint"):
        served_config(spec_of(path))
    known = config_with(tmp_path, model_type="internlm3", auto_map=code)  # mlx-lm's own module computes it
    assert isinstance(served_config(spec_of(known)), LoneConfig)


@pytest.mark.parametrize("family", ["nonsense", "../internlm3", "os.path", ""])
def test_a_family_that_mlx_lm_lacks_is_refused(tmp_path: Path, family: str) -> None:
    with pytest.raises(CheckpointError, match=r"model_type: .*is not supported.*mlx-lm does not have it either"):
        served_config(spec_of(config_with(tmp_path, model_type=family)))


def test_a_name_that_mlx_lm_maps_to_another_is_known(tmp_path: Path) -> None:
    config = served_config(spec_of(config_with(tmp_path, model_type="falcon_mamba")))
    assert isinstance(config, LoneConfig)
    assert config.family == "falcon_mamba"


def test_another_class_of_a_described_family_is_refused(tmp_path: Path) -> None:
    path = config_with(tmp_path, model_type="llama", architectures=["LlamaForTokenClassification"])
    with pytest.raises(CheckpointError, match=r"architectures: \['LlamaForTokenClassification'\] is not supported"):
        served_config(spec_of(path))


def test_sizes_are_read_under_the_names_that_families_have(tmp_path: Path) -> None:
    text = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 128, "torch_dtype": "float16"}
    config = LoneConfig.from_dir(config_with(tmp_path, model_type="gpt2", **text))
    assert (config.max_positions, config.dtype, config.row_bytes) == (128, "float16", 2 * 2 * 32 * 2)
    nested = LoneConfig.from_dir(config_with(tmp_path, model_type="gemma3n", text_config=text))
    assert (nested.max_positions, nested.row_bytes) == (128, 256)
    latent = {"num_hidden_layers": 2, "num_attention_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
    latent |= {"qk_nope_head_dim": 8, "v_head_dim": 8}
    for family, row in (("deepseek_v3", 2 * (16 + 16) * 2), ("deepseek_v2", 2 * 4 * (16 + 8) * 2)):
        assert LoneConfig.from_dir(config_with(tmp_path, model_type=family, **latent)).row_bytes == row


def test_a_model_that_states_no_context_has_what_is_asked_for(tmp_path: Path) -> None:
    path = config_with(tmp_path, model_type="mamba2")
    assert LoneConfig.from_dir(path).max_positions == 4096
    assert LoneConfig.from_dir(path, 100_000).max_positions == 100_000
    described = describe(spec_of(path, context=100_000))
    assert described.context == 100_000
    quantized = LoneConfig.from_dir(config_with(tmp_path, model_type="mamba2", quantization={"bits": 4}))
    assert quantized.widths == "int4"
    with pytest.raises(CheckpointError, match="the model is quantized already"):
        quantized.choose_quantization("int8")
    with pytest.raises(LoadRefused, match="dtype: float16"):
        quantized.check(kv_dtype="auto", window_cache="full", dtype="float16", embeddings=False)
    for dtype, shown in (("float64", "'float64'"), (["float32"], r"\['float32'\]")):
        with pytest.raises(CheckpointError, match=f"dtype: {shown} is not supported"):
            LoneConfig.from_dir(config_with(tmp_path, model_type="mamba2", dtype=dtype))


def test_weights_that_are_no_files_are_refused(tmp_path: Path) -> None:
    config = LoneConfig.from_dir(config_with(tmp_path, model_type="mamba2"))
    (tmp_path / "model.safetensors").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is not a regular file"):
        config.weight_bytes(tmp_path, "auto")
