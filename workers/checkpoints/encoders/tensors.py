"""The tensors of an encoder: our names, and those of the checkpoint."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from workers.checkpoints.architectures.row_order import SwappedHalves
from workers.checkpoints.architectures.tensors import Tensor, size_of
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.names import DERIVED, HEADS, NAMES, EncoderNames
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.weights import Weights

TABLES = ("embedding", "positions", "token_types")
"""Tensors whose rows are looked up."""


def prefix_of(config: EncoderConfig, names: Iterable[str]) -> str:
    """Return what the names of the encoder's tensors begin with in a checkpoint that has these names."""
    kind = NAMES[config.family]
    present = set(names)
    return next((each for each in kind.prefixes if f"{each}{kind.embedding}.weight" in present), "")


def encoder_tensors(config: EncoderConfig, prefix: str = "") -> Iterator[Tensor]:
    """List every tensor of the encoder, with the names that they have in the checkpoint behind `prefix`."""
    names, hidden = NAMES[config.family], config.hidden_size
    yield Tensor("embedding", ((f"{prefix}{names.embedding}.weight", (config.vocab_size, hidden)),))
    if config.table_positions:
        yield Tensor("positions", ((f"{prefix}{names.positions}.weight", (config.table_positions, hidden)),))
    if config.token_types:
        yield Tensor("token_types", ((f"{prefix}{names.token_types}.weight", (config.token_types, hidden)),))
    if config.embedding_norm:
        yield from _norm(config, "norm_embedding", prefix + names.embedding_norm)
    for number in range(len(config.plan)):
        yield from _layer(config, names, number, f"{prefix}{names.layers}{number}.")
    if config.pre_norm:
        yield from _norm(config, "norm", prefix + names.final_norm)


def encoder_parameter_count(config: EncoderConfig) -> int:
    """Count the parameters of an encoder."""
    return sum(map(size_of, encoder_tensors(config)))


def is_head(name: str, prefix: str) -> bool:
    """Return whether hidden states do not depend on a tensor, which is a head's or follows from config.json."""
    inside = name.removeprefix(prefix)
    return inside.startswith(HEADS) or inside.endswith(DERIVED)


def check_encoder_tensors(weights: Weights, config: EncoderConfig, path: Path) -> None:
    """Refuse tensors that are neither the encoder's nor those of a head: with them it would be another model; and
    those of a type that cannot be read. Raises `CheckpointError` with the name."""
    prefix = prefix_of(config, weights)
    known = {source for tensor in encoder_tensors(config, prefix) for source, _ in tensor.sources}
    weights.check_types(lambda name: name not in known)
    for name in weights:
        if name in known or is_head(name, prefix):
            continue
        raise CheckpointError(path, name, f"the tensor is not part of a {config.family} model as config.json has it")


def _layer(config: EncoderConfig, names: EncoderNames, number: int, where: str) -> Iterator[Tensor]:
    hidden, ffn = config.hidden_size, config.ffn
    place = f"{number}."
    if not config.pre_norm or number or not config.embedding_norm:
        yield from _norm(config, f"{place}norm_attention", where + names.norm_attention)
    widths = [config.qkv_width]
    if len(names.qkv) > 1:
        widths = [config.query_width, *[config.kv * config.head_dim] * 2]
    stored = [(where + name, width) for name, width in zip(names.qkv, widths, strict=True)]
    yield from _linear(config.qkv_bias, f"{place}qkv", stored, hidden)
    if config.head_norms:
        for name, source in zip(("norm_queries", "norm_keys"), names.head_norms, strict=True):
            yield Tensor(f"{place}{name}", ((f"{where}{source}.weight", (config.head_dim,)),), config.norm_offset)
    out = [(where + names.attention_out, hidden)]
    yield from _linear(config.attention_out_bias, f"{place}attention_out", out, config.query_width)
    if config.norms_around:
        yield from _norm(config, f"{place}norm_mixed", where + names.after_attention)
        yield from _norm(config, f"{place}norm_up", where + names.after_mlp)
    yield from _norm(config, f"{place}norm_mlp", where + names.norm_mlp)
    outputs = (2 * ffn if config.gated else ffn) // len(names.gate_up)
    orders = (SwappedHalves(ffn),) if names.up_first else ()
    up = [(where + name, outputs) for name in names.gate_up]
    for tensor in _linear(config.up_bias, f"{place}up", up, hidden):
        yield replace(tensor, orders=orders)
    yield from _linear(config.down_bias, f"{place}down", [(where + names.down, hidden)], ffn)


def _linear(bias: bool, name: str, stored: list[tuple[str, int]], inputs: int) -> Iterator[Tensor]:
    yield Tensor(name, tuple((f"{each}.weight", (outputs, inputs)) for each, outputs in stored))
    if bias:
        yield Tensor(f"{name}_bias", tuple((f"{each}.bias", (outputs,)) for each, outputs in stored))


def _norm(config: EncoderConfig, name: str, stored: str) -> Iterator[Tensor]:
    yield Tensor(name, ((f"{stored}.weight", (config.hidden_size,)),), config.norm_offset)
    if config.norm_bias:
        yield Tensor(f"{name}_bias", ((f"{stored}.bias", (config.hidden_size,)),))
