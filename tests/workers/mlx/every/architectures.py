"""Small checkpoints with random weights of every architecture of mlx-lm, made by its own modules."""

import dataclasses
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm import utils

from tests.checkpoints import make_tokenizer
from tests.workers.mlx.every.fields import INNER, OWN, SMALL, VOCAB

METAL = frozenset({"bitnet", "muse_spark"})
"""Those with a kernel in Metal's language."""
REFUSED = {"ernie4_5_moe": r"Missing 1 parameters: \s+model\.layers\.1\.mlp\.score_bias"}
"""Checkpoints that mlx-lm's converter writes without the biases of routers; those that are published are served."""
UNMADE = {
    "olmo": "its module ends the process without a package that mlx-lm does not depend on",
    "prism_hadamard_qwen35": "its checkpoints are packed by a tool that mlx-lm does not have",
}
"""Architectures of which no checkpoint is made, each with its reason."""


def architectures() -> Iterator[str]:
    """Yield the names of all modules of mlx-lm with a model, in order, by their source."""
    for folder in mlx_lm.models.__path__:
        for info in sorted(pkgutil.iter_modules([folder]), key=lambda each: each.name):
            source = (Path(folder) / f"{info.name}.py").read_text(encoding="utf-8")
            if "class Model(" in source and ("ModelArgs" in source):
                yield info.name


def make_architecture(path: Path, name: str, **changes: Any) -> Path:
    """Make a float32 checkpoint of an architecture as mlx-lm writes it, with a tokenizer. `changes` are of its
    fields."""
    path.mkdir(parents=True, exist_ok=True)
    config = _config(name) | changes
    (path / "config.json").write_text(json.dumps(config))
    module = importlib.import_module(f"mlx_lm.models.{name}")
    with mx.stream(mx.Device(mx.cpu)):
        mx.random.seed(0)  # the weights that modules begin with
        model = module.Model(module.ModelArgs.from_dict(json.loads((path / "config.json").read_text())))
        keys = iter(mx.random.split(mx.random.key(0), len(tree_flatten(model.parameters()))))

        def noisy(name: str, array: mx.array) -> mx.array:
            """Add to each weight, so that none is the identity, and answers do not fall into a loop."""
            key = next(keys)
            if not mx.issubdtype(array.dtype, mx.floating):
                return array
            return array + mx.random.normal(array.shape, scale=0.15, key=key).astype(array.dtype)

        model.update(tree_map_with_path(noisy, model.parameters()))
        utils.save_model(path, model)
    make_tokenizer(path, VOCAB)
    return path


def _config(name: str) -> dict[str, Any]:
    own = OWN.get(name, {})
    config = _fields(importlib.import_module(f"mlx_lm.models.{name}").ModelArgs, own)
    if name in INNER:
        inner, args = INNER[name]
        text = _fields(getattr(importlib.import_module(f"mlx_lm.models.{inner}"), args), own)
        config["text_config"] = {"model_type": inner, **text}
    return {"vocab_size": VOCAB, **config, "model_type": name, "torch_dtype": "float32"}


def _fields(args: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for the fields of a class of arguments: `own`, small ones, or none for what has a default."""
    found = dict(own)
    for field in dataclasses.fields(args):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name not in own and field.name in SMALL and (required or field.default is not None):
            found[field.name] = SMALL[field.name]
    return found
