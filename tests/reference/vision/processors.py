"""Image processors of transformers, without torchvision."""

import importlib
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

Inputs = dict[str, Any]
"""The arguments of `get_image_features`, beside the numbers of rows and columns of tiles that text is made of."""
PIL_MODULES = {
    "gemma3": "gemma3.image_processing_pil_gemma3.Gemma3",
    "gemma4": "gemma4.image_processing_pil_gemma4.Gemma4",
    "gemma4_unified": "gemma4.image_processing_pil_gemma4.Gemma4",
    "glm4v": "glm4v.image_processing_pil_glm4v.Glm4v",
    "glm4v_moe": "glm4v.image_processing_pil_glm4v.Glm4v",
    "glm_ocr": "glm4v.image_processing_pil_glm4v.Glm4v",
    "internvl": "got_ocr2.image_processing_pil_got_ocr2.GotOcr2",
    "llava": "llava.image_processing_pil_llava.Llava",
    "llava_onevision": "llava_onevision.image_processing_pil_llava_onevision.LlavaOnevision",
    "mistral3": "pixtral.image_processing_pil_pixtral.Pixtral",
    "paddleocr_vl": "paddleocr_vl.image_processing_pil_paddleocr_vl.PaddleOCRVL",
    "pixtral": "pixtral.image_processing_pil_pixtral.Pixtral",
    "qwen2_5_vl": "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VL",
    "qwen2_vl": "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VL",
    "qwen3_5": "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VL",
    "qwen3_5_moe": "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VL",
    "qwen3_vl": "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VL",
    "qwen3_vl_moe": "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VL",
    "smolvlm": "smolvlm.image_processing_pil_smolvlm.SmolVLM",
}
"""The image processors on Pillow, by family."""
PIXTRAL = {"mistral3": 2, "pixtral": 1}
"""Patches of a side of a token in checkpoints of Pixtral's kind, whose patches have 4 pixels."""
PROCESSORS = dict.fromkeys(PIXTRAL, "Pixtral") | {
    "glm4v": "Glm4v",
    "glm4v_moe": "Glm4v",
    "glm_ocr": "Glm4v",
    "internvl": "InternVL",
    "llava": "Llava",
    "llava_onevision": "LlavaOnevision",
    "paddleocr_vl": "PaddleOCRVL",
}
"""The processors that are not made of a tokenizer."""
IMAGE_TOKENS = {
    "Glm4v": "<|image|>",
    "InternVL": "<IMG_CONTEXT>",
    "Llava": "<image>",
    "LlavaOnevision": "<image>",
    "PaddleOCRVL": "<|IMAGE_PLACEHOLDER|>",
    "Pixtral": "[IMG]",
}


def image_processor(family: str, path: Path) -> Any:
    """Return the image processor of a checkpoint; that of LFM2-VL, which has none on Pillow, resizes by Pillow too."""
    settings = json.loads((path / "preprocessor_config.json").read_text())
    if family == "lfm2_vl":
        return _lfm2_processor(settings)
    module, _, name = f"transformers.models.{PIL_MODULES[family]}".rpartition(".")
    return getattr(importlib.import_module(module), f"{name}ImageProcessorPil")(**settings)


def process(family: str, path: Path, image: Pillow.Image | list[Pillow.Image]) -> tuple[Inputs, Inputs]:
    """Return the arguments of `get_image_features` for an image, or for several ones of Pixtral's kind, and what else
    transformers' processor gets."""
    processor = image_processor(family, path)
    if family == "lfm2_vl":
        outputs = dict(processor.run(image))
    elif family == "smolvlm":
        outputs = dict(processor(images=[image], return_tensors="pt", return_row_col_info=True))
    elif family == "internvl":
        outputs = dict(processor(images=[image], return_tensors="pt", crop_to_patches=True))
        return {"pixel_values": outputs["pixel_values"]}, outputs
    elif family == "gemma4_unified":
        outputs = _merged_patches(dict(processor(images=[image], return_tensors="pt")))
    elif family == "llava_onevision":
        images = image if isinstance(image, list) else [image]
        outputs = dict(processor(images=images, return_tensors="pt"))
        return {name: outputs[name] for name in ("pixel_values", "image_sizes")}, outputs
    elif family in PIXTRAL:
        side = 4 * PIXTRAL[family]
        images = image if isinstance(image, list) else [image]
        outputs = dict(processor(images=images, return_tensors="pt", patch_size={"height": side, "width": side}))
        return outputs, dict(outputs)
    else:
        outputs = dict(processor(images=[image], return_tensors="pt"))
    others = ("num_crops", "num_soft_tokens_per_image", "rows", "cols", "image_rows", "image_cols", "image_sizes")
    extra = {name: outputs.pop(name) for name in others if name in outputs}
    return outputs, extra | {name: each for name, each in outputs.items() if name == "image_grid_thw"}


def with_masks(family: str, model: Any, inputs: Inputs) -> Inputs:
    """Return the arguments of a model's `forward` with which it attends as its `generate` does: that of Gemma 4 without
    a tower attends to an image in both directions in all layers, where it makes masks by itself."""
    if family != "gemma4_unified":
        return inputs
    import torch

    ids = inputs["input_ids"]
    masks = model.create_masks_for_generate(
        config=model.config,
        inputs_embeds=torch.zeros(*ids.shape, 1),
        attention_mask=torch.ones_like(ids),
        past_key_values=None,
        position_ids=torch.arange(ids.shape[1])[None],
        mm_token_type_ids=inputs["mm_token_type_ids"],
    )
    return {**inputs, "attention_mask": masks}


def expansion(family: str, path: Path, image: Pillow.Image, tokenizer: Any) -> tuple[str, str]:
    """Return the placeholder of an image in transformers' processor, and the text that it puts in its place."""
    inputs, extra = process(family, path, image)
    names = {"qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "gemma3": "Gemma3"}
    names |= {"gemma4": "Gemma4", "gemma4_unified": "Gemma4"}
    if family == "smolvlm":
        module = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
        rows, columns = extra["rows"][0][0], extra["cols"][0][0]
        text = module.get_image_prompt_string(rows, columns, 4, "<fake_token_around_image>", "<image>", "<global-img>")
        return "<image>", text
    if family == "lfm2_vl":
        module = importlib.import_module("transformers.models.lfm2_vl.processing_lfm2_vl")
        processor = module.Lfm2VlProcessor.__new__(module.Lfm2VlProcessor)
        processor.image_processor = image_processor(family, path)
        tokens = ("image", "image_start", "image_end")
        for name, token in zip(tokens, ("<image>", "<|image_start|>", "<|image_end|>"), strict=True):
            setattr(processor, f"{name}_token", token)
        processor.image_thumbnail_token = "<|img_thumbnail|>"
        return "<image>", processor.replace_image_token(extra, 0, use_image_special_tokens=True)
    if family in PROCESSORS:
        return replaced(family, path, inputs | extra)
    name = names.get(family, "Qwen2VL" if family == "qwen2_vl" else "Qwen3VL")
    module = importlib.import_module(f"transformers.models.{name.lower() if name[0] == 'G' else _snake(name)}")
    source = importlib.import_module(f"{module.__name__}.processing_{module.__name__.rpartition('.')[2]}")
    kind = getattr(source, f"{name}Processor")
    processor = kind.__new__(kind)
    processor.image_processor = image_processor(family, path)
    if family == "gemma3":
        inner = tokenizer.image_token * 4
        processor.full_image_sequence = f"\n\n{tokenizer.boi_token}{inner}{tokenizer.eoi_token}\n\n"
        return tokenizer.boi_token, processor.replace_image_token(extra, 0)
    processor.image_token = tokenizer.image_token if family.startswith("gemma4") else "<|image_pad|>"
    if family.startswith("gemma4"):
        processor.boi_token, processor.eoi_token = tokenizer.boi_token, tokenizer.eoi_token
    return processor.image_token, processor.replace_image_token(extra, 0)


def _snake(name: str) -> str:
    return {"Qwen2_5_VL": "qwen2_5_vl", "Qwen3VL": "qwen3_vl", "Qwen2VL": "qwen2_vl"}[name]


def replaced(family: str, path: Path, inputs: Inputs, number: int = 0) -> tuple[str, str]:
    """Return what `expansion` does for one of `PROCESSORS`, which gets the fields that they read, for one of several
    images."""
    name = PROCESSORS[family]
    with empty_torchvision():
        snake = {"LlavaOnevision": "llava_onevision", "PaddleOCRVL": "paddleocr_vl"}.get(name, name.lower())
        module = importlib.import_module(f"transformers.models.{snake}.processing_{snake}")
    processor = object.__new__(getattr(module, f"{name}Processor"))
    for attribute, value in (
        ("image_break_token", "[IMG_BREAK]"),
        ("image_end_token", "[IMG_END]"),
        ("start_image_token", "<img>"),
        ("end_image_token", "</img>"),
        ("image_token", IMAGE_TOKENS[name]),
        ("image_processor", image_processor(family, path)),
        ("image_seq_length", 9),
        ("num_additional_image_tokens", 1),
        ("num_image_tokens", 36),
        ("vision_aspect_ratio", "anyres_max_2"),
        ("patch_size", 4),
        ("spatial_merge_size", PIXTRAL.get(family)),
        ("vision_feature_select_strategy", "full" if family == "llava_onevision" else "default"),
    ):
        setattr(processor, attribute, value)
    return processor.image_token, processor.replace_image_token(inputs, number)


def _merged_patches(outputs: dict[str, Any]) -> dict[str, Any]:
    """Merge the patches that Gemma 4's processor on Pillow makes as that of models without a tower does, which is there
    for torchvision alone."""
    name = "transformers.models.gemma4_unified.image_processing_gemma4_unified"
    with empty_torchvision(name) as (module,):
        count = int(outputs["num_soft_tokens_per_image"][0])
        patches = count * 9
        merged, places = module.patches_merge(
            outputs["pixel_values"][:, :patches], outputs["image_position_ids"][:, :patches], count
        )
    return outputs | {"pixel_values": merged, "image_position_ids": places}


@contextmanager
def empty_torchvision(*names: str) -> Iterator[list[Any]]:
    """Import modules, and what the caller imports meanwhile, with an empty module under torchvision's name. Those of
    `names` are forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for part in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
            module = types.ModuleType(part)
            module.functional = types.SimpleNamespace(InterpolationMode=int)  # type: ignore[attr-defined]
            patch.setitem(sys.modules, part, module)
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        yield [importlib.import_module(name) for name in names]
    for name in names:
        sys.modules.pop(name, None)


def _lfm2_processor(settings: dict[str, Any]) -> Any:
    """Return transformers' processor of LFM2-VL with Pillow's resizing in place of torchvision's, which it is written
    for. Its code is imported with an empty module under torchvision's name."""
    with empty_torchvision("transformers.models.lfm2_vl.image_processing_lfm2_vl") as (source,):
        pass

    class OnPillow(source.Lfm2VlImageProcessor):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.__dict__.update(settings)

        def run(self, image: Pillow.Image) -> Any:
            """Preprocess one image."""
            import torch

            fields = {name: each for name, each in settings.items() if name != "size"}
            pixels = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
            return self._preprocess([pixels], return_tensors="pt", disable_grouping=True, **fields)

        def rescale_and_normalize(self, images: Any, *_: Any) -> Any:
            mean, deviation = settings["image_mean"][0], settings["image_std"][0]
            return (images.float() * settings["rescale_factor"] - mean) / deviation

    def resize(self: Any, image: Any, size: Any, resample: Any = None, **_: Any) -> Any:
        import torch

        resized = [
            np.asarray(Pillow.fromarray(each.permute(1, 2, 0).numpy()).resize((size.width, size.height), resample))
            for each in image
        ]
        return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2)

    # `super().resize` in transformers' class finds it there, before the one of its own base.
    base = type("Resizing", source.Lfm2VlImageProcessor.__mro__[1:2], {"resize": resize})
    source.Lfm2VlImageProcessor.__bases__ = (base,)
    return OnPillow()
