"""The pooling of a checkpoint as sentence-transformers' files state it, and what follows it.

`modules.json` lists the modules that a vector passes: a transformer, `Pooling`, any number of `Dense`, and `Normalize`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.config import CLASSIFIER
from workers.checkpoints.documents import find_document
from workers.checkpoints.json_files import MAX_CONFIG_BYTES, CheckpointError, read_json, read_text
from workers.checkpoints.weights import SafetensorsWeights
from workers.pooling.pooling import Pooling, PoolingKind

MODES: Mapping[str, PoolingKind] = {"cls": "cls", "lasttoken": "last", "mean": "mean"}
"""Our poolings by the names of sentence-transformers' modes."""
MODE_FIELDS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""The modes by the fields with which they are chosen."""
LOGIT_SCORE = "LogitScore"
"""The module of a reranker that scores by logits, in place of a pooling."""
MODULES = ("Transformer", "Pooling", "Dense", "Normalize", LOGIT_SCORE)
FOLLOWING: Mapping[str, Sequence[str]] = {
    "Transformer": ("Pooling",),
    "Pooling": ("Dense", "Normalize"),
    "Dense": ("Dense", "Normalize"),
}
"""The modules that may follow each, of a model that makes vectors."""
ACTIVATIONS = ("Identity", "Tanh")
DENSE_FIXED: Mapping[str, tuple[Any, ...]] = {
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
    "use_residual": (None, False),
}
"""The values of a dense module's fields that are supported."""
MAX_TOKENS = 1 << 24
MAX_WIDTH = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class DenseModule:
    """A linear layer that a vector passes after it was pooled."""

    weight: NDArray[np.float32]
    """[outputs, inputs]."""
    bias: NDArray[np.float32] | None
    tanh: bool
    file: Path
    """The file that describes it."""

    def apply(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs, float32 [outputs], for float32 [inputs]."""
        out = self.weight @ vector
        out = out if self.bias is None else out + self.bias
        done: NDArray[np.float32] = np.tanh(out) if self.tanh else out
        return done


@dataclass(frozen=True, slots=True)
class CheckpointPooling:
    """The steps from a text to its vector, in this order: prompt, pooling, dense modules, and normalization."""

    pooling: Pooling
    dense: tuple[DenseModule, ...] = ()
    """They come before the normalization."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before a text, by their names, such as "query"."""
    default_prompt: str = ""
    """The name of the one that is taken unless another is asked for; empty is none."""
    max_tokens: int = 0
    """Tokens to which sentence-transformers truncates a text; 0 is what the model takes."""
    stated: bool = False
    """The checkpoint has these files; otherwise the pooling is the default of its architecture."""

    @classmethod
    def of(cls, path: Path, default: PoolingKind = "mean") -> "CheckpointPooling":
        """Read the files of a checkpoint. `default` is the pooling of one that states none, with normalization. Raises
        `CheckpointError` for a module or mode that is not supported, by its name."""
        prompts, default_prompt = _prompts(path)
        file = path / "modules.json"
        if not file.exists():
            return cls(Pooling(default), (), prompts, default_prompt, _max_tokens(path))
        modules = modules_of(file)
        kinds = [kind for kind, _ in modules]
        if kinds == ["Transformer", LOGIT_SCORE] or (kinds == ["Transformer"] and _classifies(path)):
            return cls(Pooling(default), (), prompts, default_prompt, _max_tokens(path))
        if "Pooling" not in kinds:
            raise CheckpointError(file, "type", "has no Pooling module")
        for before, after in pairwise(kinds):  # another order or number would be another vector
            if after not in FOLLOWING.get(before, ()):
                raise CheckpointError(file, "type", f"{after} after {before} is not supported")
        normalized = kinds[-1] == "Normalize"
        pooling = _pooling(path / modules[1][1] / "config.json")
        dense = tuple(_dense(path / folder) for kind, folder in modules if kind == "Dense")
        return cls(Pooling(pooling, normalized), dense, prompts, default_prompt, _max_tokens(path), stated=True)

    def width(self, hidden: int) -> int:
        """Return the numbers of a vector, for a model of this hidden size. Raises `CheckpointError` for a dense module
        that takes another number of inputs than the one before it returns."""
        for module in self.dense:
            outputs, inputs = module.weight.shape
            if inputs != hidden:
                raise CheckpointError(module.file, "in_features", f"is {inputs}, and its inputs are {hidden} numbers")
            hidden = outputs
        return hidden

    def project(self, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what the dense modules make of pooled hidden states, float32 [hidden] -> float32 [width]."""
        for module in self.dense:
            pooled = module.apply(pooled)
        return pooled


def _classifies(path: Path) -> bool:
    """Return whether the model is a cross-encoder, which has no pooling."""
    names = (find_document(path, "config.json") or {}).get("architectures")
    return isinstance(names, list) and any(str(name).endswith(CLASSIFIER) for name in names)


def refuse_logit_score(path: Path) -> None:
    """Raise `CheckpointError` for an encoder with the module that scores by the logits of a model that generates."""
    file = path / "modules.json"
    if file.exists() and LOGIT_SCORE in dict(modules_of(file)):
        text = (
            f"{LOGIT_SCORE} is not supported for an encoder, which has no logits, only classes that end in {CLASSIFIER}"
        )
        raise CheckpointError(file, "type", text)


def modules_of(file: Path) -> list[tuple[str, str]]:
    """Read modules.json: the class, without its package, and the folder of each module. Raises `CheckpointError`."""
    try:
        listed = json.loads(read_text(file, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, "", f"is not JSON: {error}") from error
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise CheckpointError(file, "", "is not a list of modules")
    found = []
    for number, module in enumerate(listed):
        kind, folder = module.get("type"), module.get("path")
        name = kind.rpartition(".")[2] if isinstance(kind, str) else kind
        if name not in MODULES or (name == "Transformer") != (number == 0):
            raise CheckpointError(file, "type", f"{kind!r} is not supported, only {', '.join(MODULES)} in this order")
        if not isinstance(folder, str) or not folder.isprintable() or not _is_inside(Path(folder)):
            raise CheckpointError(file, "path", f"{folder!r} is not a folder in the checkpoint")
        found.append((name, folder))
    return found


def _is_inside(folder: Path) -> bool:
    return not folder.is_absolute() and ".." not in folder.parts


def _pooling(file: Path) -> PoolingKind:
    fields = read_json(file)
    stated = fields.get("pooling_mode")
    modes: list[Any] = [mode for name, mode in MODE_FIELDS.items() if fields.get(name, mode == "mean") is True]
    if stated is not None:
        modes = [stated] if isinstance(stated, str) else [*map(str, stated)] if isinstance(stated, list) else [stated]
    if len(modes) != 1 or modes[0] not in MODES:
        named = " and ".join(map(str, modes)) or "none"
        raise CheckpointError(file, "pooling_mode", f"{named} is not supported, only one of {', '.join(MODES)}")
    if fields.get("include_prompt", True) is not True:
        raise CheckpointError(file, "include_prompt", "false is not supported: prompts are pooled with their texts")
    return MODES[modes[0]]


def _dense(folder: Path) -> DenseModule:
    file = folder / "config.json"
    fields = read_json(file)
    sizes = []
    for name in ("out_features", "in_features"):
        size = fields.get(name)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MAX_WIDTH:
            raise CheckpointError(file, name, f"{size!r} is not an integer from 1 to {MAX_WIDTH}")
        sizes.append(size)
    activation = fields.get("activation_function", "torch.nn.modules.activation.Tanh")
    of_torch = isinstance(activation, str) and activation.startswith("torch.")
    name = activation.rpartition(".")[2] if of_torch else activation
    if not of_torch or name not in ACTIVATIONS:
        text = f"{activation!r} is not supported, only torch's Identity and Tanh"
        raise CheckpointError(file, "activation_function", text)
    for field_name, values in DENSE_FIXED.items():
        if (value := fields.get(field_name)) not in values:
            raise CheckpointError(file, field_name, f"{value!r} is not supported, only {values[1]!r}")
    biased = fields.get("bias", True)
    if not isinstance(biased, bool):
        raise CheckpointError(file, "bias", f"{biased!r} is not true or false")
    weights = SafetensorsWeights(folder, None)
    bias = None
    if biased:
        bias = weights.take("linear.bias", (sizes[0],)).astype(np.float32)
    weight = weights.take("linear.weight", (sizes[0], sizes[1])).astype(np.float32)
    return DenseModule(weight, bias, name == "Tanh", file)


def _prompts(path: Path) -> tuple[dict[str, str], str]:
    file = path / "config_sentence_transformers.json"
    fields: Mapping[str, Any] = read_json(file) if file.exists() else {}
    prompts = fields.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(file, "prompts", "is not an object of texts")
    default = fields.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise CheckpointError(file, "default_prompt_name", f"{default!r} is not one of the prompts")
    return prompts, default


def _max_tokens(path: Path) -> int:
    file = path / "sentence_bert_config.json"
    value = read_json(file).get("max_seq_length") if file.exists() else None
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_TOKENS:
        raise CheckpointError(file, "max_seq_length", f"{value!r} is not an integer from 1 to {MAX_TOKENS}")
    return value
