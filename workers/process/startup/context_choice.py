"""Chooses the context of a worker: what was asked for, or the model's own if memory allows."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from protocol.bounds import MAX_COUNT
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.lone_config import LoneConfig
from workers.checkpoints.weight_size import ITEM_BYTES, kv_row_bytes, weight_bytes
from workers.errors import LoadRefused
from workers.host.memory import kv_share, leaving_bytes, spare_bytes
from workers.iree.device.drivers import DEFAULT_DEVICE, LOCAL_DRIVERS, driver_of
from workers.iree.model import window_ring as iree_ring
from workers.iree.model.width_padding import WidthPadding
from workers.mlx.runtime import window_ring as mlx_ring
from workers.precision import WeightDtype
from workers.process.spec import WorkerSpec
from workers.process.startup.state_sizes import all_states_bytes
from workers.process.startup.tier_reserve import tier_reserve
from workers.process.startup.vision_size import vision_bytes

ContextBound = Literal["", "setting", "memory", "device"]
ADDRESS_BYTES = 1 << 45
"""Most addresses of the slots together, a quarter of what x86-64 gives a process."""


@dataclass(frozen=True, slots=True)
class ContextChoice:
    """The context of a worker, and why it is less than the model's."""

    context: int
    """Tokens of prompt and answer in one slot."""
    model_context: int
    """The context that the model declares."""
    bound: ContextBound
    """The bound of the context; empty if it is the model's own."""

    @classmethod
    def of(cls, spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> "ContextChoice":
        """Choose the context of the checkpoint of `spec`. Raises `CheckpointError` and `LoadRefused` for one that was
        asked for.

        Where all of the cache is allocated at the start, it is at most `DEFAULT_CONTEXT` unless more is asked for.
        Otherwise one sequence of the whole context must fit into the KV cache: into `kv_bytes`, or into this worker's
        share of the memory that is free now. Memory is no reason for less than `DEFAULT_CONTEXT`, with which the load
        is refused if it does not fit.

        What was chosen when the server started is chosen again: the workers themselves take memory since then, and one
        that restarts computes the same tokens as the others only with their context.
        """
        most = config.max_positions
        if spec.context:
            context = config.choose_context(spec.context)
            return cls(context, most, "setting" if context < most else "")
        least = config.choose_context(0)
        if least == most:
            return cls(most, most, "")
        if allocates_cache(spec, backend):
            return cls(least, most, "device")
        if spec.chosen_context:
            context = min(spec.chosen_context, most)
            return cls(context, most, "memory" if context < most else "")
        if isinstance(config, LoneConfig) and not config.row_bytes:
            return cls(least, most, "memory")
        rows = _rows(spec, backend, config)
        if (
            isinstance(config, ModelConfig)
            and has_rings(spec, backend, config)
            and not _ring_rows(replace(spec, chosen_context=max(least, _rounded(rows))), backend, config)
        ):
            rows = _rows(replace(spec, window_cache="full"), backend, config)
        if rows >= most:
            return cls(most, most, "")
        return cls(max(least, _rounded(rows)), most, "memory")


def row_bytes(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> int:
    """Return the bytes of the KV cache of one token."""
    if isinstance(config, LoneConfig):
        return max(1, config.row_bytes)
    if isinstance(config, EncoderConfig):
        return 0
    padding = WidthPadding.of(config) if backend == "iree" else None
    config = config if padding is None else padding.config(config)
    if has_rings(spec, backend, config):
        config = config.with_ring()
    return kv_row_bytes(config, ITEM_BYTES[kind_of(spec, config)], spec.kv_dtype)


def has_rings(spec: WorkerSpec, backend: str, config: ModelConfig) -> bool:
    """Return whether layers with a window keep a ring of rows, in a context that is long enough."""
    if spec.window_cache == "full" or not _reads_rings(spec, backend):
        return False
    return _ring_rows(spec, backend, config) > 0


def ring_bytes(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> int:
    """Return the bytes of the rings of all slots."""
    if not isinstance(config, ModelConfig) or not has_rings(spec, backend, config):
        return 0
    full = row_bytes(replace(spec, window_cache="full"), backend, config)
    rows = _ring_rows(spec, backend, config) + (iree_ring.TILE_ROWS if backend == "iree" else 0)
    return spec.max_batch_size * rows * (full - row_bytes(spec, backend, config))


def sequence_bytes(
    spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig, tokens: int
) -> int:
    """Return the bytes of the KV cache of one sequence of so many tokens, in a context of that length."""
    spec = replace(spec, context=tokens)
    rings = ring_bytes(spec, backend, config) // spec.max_batch_size
    return tokens * row_bytes(spec, backend, config) + rings


def check_window_cache(spec: WorkerSpec, backend: str) -> None:
    """Refuse rings where no kernel reads them. Raises `LoadRefused`."""
    if spec.window_cache == "ring" and not _reads_rings(spec, backend):
        where = "on a CPU" if backend == "iree" else "with the backends iree and mlx"
        raise LoadRefused(f"window_cache: ring is possible {where} only: leave it out")


def _reads_rings(spec: WorkerSpec, backend: str) -> bool:
    return backend == "mlx" or (backend == "iree" and not allocates_cache(spec, backend))


def _ring_rows(spec: WorkerSpec, backend: str, config: ModelConfig) -> int:
    context = spec.context or spec.chosen_context or config.max_positions
    ring_rows = iree_ring.ring_rows if backend == "iree" else mlx_ring.ring_rows
    return ring_rows(config, spec.max_batch_size, context)


def both_row_bytes(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> int:
    """Return the bytes of the KV caches of one token: of the model, and of its draft model if there is one."""
    own = row_bytes(spec, backend, config)
    if not spec.draft_model:
        return own
    return own + row_bytes(spec, backend, ModelConfig.from_dir(Path(spec.draft_model)))


def addressed_rows(spec: WorkerSpec, row_bytes_: int) -> int:
    """Return the tokens of a slot for which a process has addresses."""
    return ADDRESS_BYTES // (max(1, row_bytes_) * spec.max_batch_size)


def allocates_cache(spec: WorkerSpec, backend: str) -> bool:
    """Return whether the device allocates all of the KV cache at the start."""
    return backend == "iree" and driver_of(spec.device or DEFAULT_DEVICE) not in LOCAL_DRIVERS


def kv_bytes_of(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig, context: int) -> int:
    """Return the bytes of KV cache for a load with this context: those of the setting, or with `kv_most` as many as
    memory allows up to that, but at least one context; 0 without either. Beside a draft model they are never 0, and
    those of the model itself; of an encoder they are. For a worker, whose parent is the server."""
    if isinstance(config, EncoderConfig):
        return 0
    if not spec.draft_model and (spec.kv_bytes or not spec.kv_most):
        return spec.kv_bytes
    spec = replace(spec, chosen_context=context)
    one, most = row_bytes(spec, backend, config), spec.kv_bytes
    if not most:
        most = min(spec.kv_most or MAX_COUNT, _free_for_kv(spec, backend, config, os.getppid()))
    if not spec.draft_model:
        return max(context * one, most)
    rows = min(most // both_row_bytes(spec, backend, config), spec.max_batch_size * context)
    return one * (rows if spec.kv_bytes else max(context, rows))


def kind_of(spec: WorkerSpec, config: ModelConfig | LoneConfig | EncoderConfig) -> WeightDtype:
    """Return the type of the weights and of the KV cache of a checkpoint."""
    return config.dtype if spec.dtype == "auto" else spec.dtype


def _free_for_kv(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig, server: int) -> int:
    """The bytes that remain for the KV cache of a worker of the process `server`."""
    path = Path(spec.model_path)
    if isinstance(config, EncoderConfig):
        return 0
    if isinstance(config, LoneConfig):
        weights = config.weight_bytes(path, spec.dtype)
    else:
        weights = weight_bytes(open_weights(path, spec.quantize), kind_of(spec, config), spec.quantize, mtp=config.mtp)
        weights += vision_bytes(spec, kind_of(spec, config))
    weights += all_states_bytes(spec, backend, config) + ring_bytes(spec, backend, config)
    if spec.draft_model:
        draft = Path(spec.draft_model)
        kind = kind_of(spec, ModelConfig.from_dir(draft))
        weights += weight_bytes(open_weights(draft, spec.quantize), kind, spec.quantize)
    reserved = tier_reserve(spec.prefix_cache_bytes, spec.prefix_cache_dir)
    free = spare_bytes() + leaving_bytes(spec.predecessor, server) - reserved
    return max(0, kv_share(free, spec.workers, weights))


def _rows(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> int:
    """Return the rows that the KV cache can have. For the server itself: its workers get their context."""
    one = both_row_bytes(spec, backend, config)
    free = spec.kv_bytes or _free_for_kv(spec, backend, config, os.getpid())
    return min(min(free, spec.kv_most or free) // one, addressed_rows(spec, one))


def _rounded(rows: int) -> int:
    """Round down to an eighth of a power of two, so that graphs, which are compiled for a context, can be found again
    when a little more or less memory is free."""
    unit = 1 << max(0, rows.bit_length() - 4)
    return rows // unit * unit
