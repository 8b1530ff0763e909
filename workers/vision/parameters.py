"""The names and shapes of a tower's parameters: see `workers.vision.config`."""

from collections.abc import Iterator

from workers.vision.config import Merger, Norm, VisionConfig

Shape = tuple[int, ...]
Shapes = Iterator[tuple[str, Shape]]


def parameter_shapes(config: VisionConfig) -> dict[str, Shape]:
    """Return the shape of each parameter by its canonical name."""
    shapes = dict(_linear("patch", config.hidden, config.patch_values, config.biases or config.patch_bias))
    for name, kind in embedding_norms(config).items():
        shapes |= dict(_norm(name, config.patch_values if name == "values_norm" else config.hidden, kind))
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer(config)}
    if config.last_norm:
        shapes |= dict(_norm("norm", config.hidden, config.norm))
    shapes |= dict(_merger("merger", config, config.merger))
    if config.tap_merger is not None:
        for tap in range(len(config.taps)):
            shapes |= dict(_merger(f"taps.{tap}", config, config.tap_merger))
    if config.standardize:
        shapes |= {"standard.bias": (config.hidden,), "standard.scale": (config.hidden,)}
    if config.table is not None:
        rows, columns = config.table
        places = (2, rows) if config.table_kind == "axes" else (config.extra + rows * columns,)
        shapes["positions.weight"] = (*places, config.hidden)
    if config.newline:
        shapes["newline.weight"] = (config.output,)
    if config.extra:
        shapes["extra.weight"] = (config.hidden,)
    return shapes


def embedding_norms(config: VisionConfig) -> dict[str, Norm]:
    """Return the kinds of the norms around the embeddings of patches, by their parameters."""
    found = {"values_norm": config.values_norm, "patch_norm": config.patch_norm, "placed_norm": config.placed_norm}
    return {name: kind for name, kind in found.items() if kind is not None}


def _layer(config: VisionConfig) -> Shapes:
    hidden, lanes = config.hidden, config.heads * config.head_dim
    for name in ("norm1", "norm2"):
        yield from _norm(name, hidden, config.norm)
    matrices = [("q", lanes, hidden), ("k", lanes, hidden), ("v", lanes, hidden), ("o", hidden, lanes)]
    matrices += [("up", config.mlp, hidden), ("down", hidden, config.mlp)]
    matrices += [("gate", config.mlp, hidden)] if config.gated else []
    for name, outputs, inputs in matrices:
        yield from _linear(name, outputs, inputs, config.biases)
        if config.clipped:
            yield f"{name}.clip", (4,)
    if config.qk_norm:
        yield from (("q_norm.weight", (config.head_dim,)), ("k_norm.weight", (config.head_dim,)))
    if config.sandwich:
        yield from (("post1.weight", (hidden,)), ("post2.weight", (hidden,)))


def _merger(prefix: str, config: VisionConfig, merger: Merger) -> Shapes:
    width = config.hidden * (config.group if merger.pooling == "concat" else 1)
    if merger.norm is not None:
        yield from _norm(f"{prefix}.norm", config.hidden if merger.norm_each else width, merger.norm)
    for number, mix in enumerate(merger.mixes):
        yield from _linear(f"{prefix}.mix.{number}", mix.outputs, width, mix.bias)
        width = mix.outputs
        if mix.norm is not None:
            yield from _norm(f"{prefix}.mix.{number}.norm", width, mix.norm)
    for name in ("gate", "up") if merger.gated else ("up",) if merger.inner else ():
        yield from _linear(f"{prefix}.{name}", merger.inner, width, merger.biases)
    yield from _linear(f"{prefix}.down", config.output, merger.inner or width, merger.biases)


def _linear(name: str, outputs: int, inputs: int, biases: bool) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    if biases:
        yield f"{name}.bias", (outputs,)


def _norm(name: str, size: int, kind: str) -> Shapes:
    yield f"{name}.weight", (size,)
    if kind == "layer":
        yield f"{name}.bias", (size,)
