"""A family's module of mlx-lm, and the names in it that are replaced."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from workers.checkpoints.checkpoint import ModelConfig
from workers.errors import LoadRefused
from workers.mlx.modules.parts import plain_swiglu, ragged_attention

OTHER_VERSION = "this version of mlx-lm is not supported, `pip install 'baton-serve[mlx]'` installs one that is"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A module of `mlx_lm.models`, and the names in it that are replaced."""

    module: str
    always: Mapping[str, Any] = field(default_factory=lambda: {"scaled_dot_product_attention": ragged_attention})
    """Replacements on every device, by name."""
    uncompiled: Mapping[str, Any] = field(default_factory=lambda: {"swiglu": plain_swiglu})
    """Further replacements where `mx.compile` is not used."""
    submodules: Mapping[str, "Adapter"] = field(default_factory=dict)
    """Names in it of other modules of mlx-lm, in which names are replaced in turn."""
    biases: bool = False
    """Gives the projections of attention the biases that `attention_bias` asks for."""
    free_head_dim: bool = True
    """Reads `head_dim`. Without it a head has hidden_size / num_attention_heads lanes."""
    layer_types: bool = False
    """Needs `layer_types`, with both kinds of layers in it."""
    classes: tuple[str, str] = ("Model", "ModelArgs")
    """The classes of the model and of its fields."""
    takes: Mapping[str, tuple["Adapter", str]] = field(default_factory=dict)
    """Names in it that it has imported from other modules of mlx-lm, in which names are replaced in turn."""
    mixer: str = ""
    """The attribute of a layer that has a recurrent state; empty if all have attention."""
    adjust: Callable[[Any, ModelConfig], None] = lambda model, config: None
    """Replaces modules of the loaded model that round a factor more than transformers does, or compute otherwise."""
    fixed_biases: bool = False
    """Gives the projections of attention and the MLP the biases that its models have; they cannot be left out."""
    attention: str = "self_attn"
    """The name of attention in a layer."""
    head: Literal["as_tied", "removed", "kept"] = "as_tied"
    """The module has a head of its own if heads are not tied, or never, and gets one then; or always, which is removed
    if they are, or cannot be."""
    attention_type: str = "full_attention"
    """The name in `layer_types` of attention without a window."""
    dense_layers: bool = True
    """Layers of a model with a mixture of experts may have an MLP in its place."""
    window_pattern: int | None = 1
    """`sliding_window_pattern` of a model without windows."""
    fields: Callable[[ModelConfig], Mapping[str, Any]] = lambda config: {}
    """Further fields of config.json for `ModelArgs`."""


def bind_module(adapter: Adapter, *, compiled: bool) -> ModuleType:
    """Load a fresh copy of the adapter's module and replace its names.

    The module that `import` gives is shared by the whole process and stays as it is. Without `compiled` nothing in the
    copy goes through `mx.compile`, which on a CPU runs a C++ compiler and loads the result from a folder that other
    users can write to. Raises `LoadRefused` for a version of mlx-lm that lacks the module or a name.
    """
    name = adapter.module
    spec = importlib.util.find_spec(f"mlx_lm.models.{name}")
    if spec is None or spec.loader is None:
        raise LoadRefused(f"mlx_lm has no module mlx_lm.models.{name}: {OTHER_VERSION}")
    importlib.import_module(spec.name)  # dataclasses with postponed annotations look their module up
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    replacements = dict(adapter.always) if compiled else {**adapter.always, **adapter.uncompiled}
    replacements |= {key: bind_module(inner, compiled=compiled) for key, inner in adapter.submodules.items()}
    for key, (inner, taken) in adapter.takes.items():
        replacements[key] = getattr(bind_module(inner, compiled=compiled), taken)
    for attribute, replacement in replacements.items():
        if not hasattr(module, attribute):
            raise LoadRefused(f"mlx_lm.models.{name} has no {attribute}: {OTHER_VERSION}")
        setattr(module, attribute, replacement)
    return module
