"""Tiny multimodal checkpoints with random weights, made and saved by transformers.

`make_vision_checkpoint` needs torch: tests that call it are skipped without.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import AddedToken, Tokenizer

from tests.checkpoints import EOS_ID, make_checkpoint, write_safetensors
from tests.vision_checkpoints.case import CHATML, TEXT, VOCAB, VisionCase
from tests.vision_checkpoints.families import VISION_FAMILIES
from workers.vision.families.registered_families import VISION_FAMILIES as TOWERS


def make_vision_checkpoint(
    directory: Path,
    family: str = "qwen3_vl",
    *,
    seed: int = 0,
    vision: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
    dtype: str = "float32",
) -> Path:
    """Write a checkpoint of one of `VISION_FAMILIES` into `directory` and return it; random weights, to which positions
    and norms matter. Further fields of its files are in `vision`, `text`, `fields` and `preprocessor`."""
    torch = pytest.importorskip("torch", reason="needs the `reference` extra")
    case = VISION_FAMILIES[family]
    ids = write_tokenizer(directory, case)
    model = make_vision_model(family, ids, seed=seed, vision=vision, text=text, fields=fields)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    if family == "qwen3_vl_moe":
        transpose_experts(directory)
    _write(directory / "generation_config.json", {"eos_token_id": [EOS_ID], "do_sample": False})
    _write(directory / "preprocessor_config.json", {**case.preprocessor, **(preprocessor or {})})
    if case.processor:
        _write(directory / "processor_config.json", case.processor)
    return directory


def transpose_experts(directory: Path) -> None:
    """Turn the stacks of experts as Qwen3-VL was published, and back."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith((".experts.gate_up_proj", ".experts.down_proj"))]:
        tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
    write_safetensors(file, tensors)


def make_vision_description(
    directory: Path,
    family: str = "qwen3_vl",
    *,
    vision: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
    preprocessor: Mapping[str, Any] | None = None,
) -> Path:
    """Write what `make_vision_checkpoint` does, without torch and with one tensor of the tower alone: enough to read
    the tower's description and to preprocess images. A field that is `...` is left out."""
    case = VISION_FAMILIES[family]
    ids = write_tokenizer(directory, case)
    values = {
        "architectures": [f"{case.name}ForConditionalGeneration"],
        "model_type": case.model_type or family,
        "text_config": {**TEXT, **case.text, **(text or {})},
        "vision_config": {**case.vision, **(vision or {})},
        **{name: ids[token] for name, token in case.tokens.items()},
        **case.fields,
        **(fields or {}),
    }
    _write(directory / "config.json", _without_gaps(values))
    _write(directory / "preprocessor_config.json", _without_gaps({**case.preprocessor, **(preprocessor or {})}))
    prefix = next(iter(TOWERS[f"{case.name}ForConditionalGeneration"].prefixes))
    write_safetensors(directory / "model.safetensors", {f"{prefix}a.weight": np.zeros(1, np.float32)})
    return directory


def _without_gaps(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_gaps(each) if isinstance(each, Mapping) else each
        for name, each in values.items()
        if each is not ...
    }


def make_vision_model(
    family: str,
    ids: Mapping[str, int],
    *,
    seed: int = 0,
    vision: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Any:
    """Return the model in transformers, float32, for the ids of its special tokens."""
    import torch
    import transformers

    case = VISION_FAMILIES[family]
    settings = {
        "text_config": {**TEXT, **case.text, **(text or {})},
        "vision_config": {**case.vision, **(vision or {})},
        **{name: ids[token] for name, token in case.tokens.items()},
        **case.fields,
        **(fields or {}),
    }
    config = getattr(transformers, f"{case.name}Config")(**settings)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{case.name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            _randomize(torch, name, tensor)
    return model


def _randomize(torch: Any, name: str, tensor: Any) -> None:
    """Give a parameter values that the answer depends on; buffers of RoPE keep theirs."""
    if not tensor.is_floating_point() or "inv_freq" in name or "embed_scale" in name:
        return
    if name.endswith(("input_min", "output_min", "input_max", "output_max")):
        bound = 0.8 if ".input" in name else 1.5
        tensor.fill_(-bound if name.endswith("min") else bound)
    elif name.endswith(("std_scale", "layer_scalar")):
        tensor.copy_(1 + 0.1 * torch.randn_like(tensor))
    elif tensor.ndim < 2:
        tensor.add_(torch.randn_like(tensor), alpha=0.1)
    elif "position_embedding" in name or "pos_embed" in name:
        tensor.normal_(0.0, 0.3)
    elif "embed_tokens" in name:
        tensor.normal_(0.0, 0.5)
    else:
        inputs = tensor.shape[0] if name.endswith("mm_input_projection_weight") else tensor[0].numel()
        tensor.normal_(0.0, 1.5 / inputs**0.5)


def write_tokenizer(directory: Path, case: VisionCase) -> dict[str, int]:
    """Write the files of the tokenizer, and return the ids of its special tokens."""
    make_checkpoint(directory, layers=1, hidden=32, ffn=32, heads=2, kv_heads=1)
    (directory / "model.safetensors").unlink()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in case.specials])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(case.template, encoding="utf-8")
    file = directory / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings |= {"additional_special_tokens": list(case.specials), "extra_special_tokens": dict(case.named)}
    settings |= {"bos_token": "<bos>"} if "<bos>" in case.specials else {}
    del settings["chat_template"]
    _write(file, settings)
    found = {name: tokenizer.token_to_id(name) for name in (*case.specials, *CHATML)}
    ids = {name: number for name, number in found.items() if number is not None}
    assert len(ids) == len(found)
    assert max(ids.values()) < VOCAB
    return ids


def _write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(dict(values), indent=2), encoding="utf-8")
