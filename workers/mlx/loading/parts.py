"""Loads what an MLX runner consists of: the model, its adapters and vision tower, within the memory there is."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from workers.checkpoints.checkpoint import ModelConfig, Weights, open_weights
from workers.checkpoints.gguf.gguf_weights import GgufWeights
from workers.checkpoints.lora.adapters_digest import adapters_digest
from workers.checkpoints.low_bits.low_bit_weights import LowBitWeights
from workers.checkpoints.weight_size import kv_row_bytes, weight_bytes
from workers.engine.runner import RunnerCapabilities
from workers.host.memory import Needed, free_bytes, spare_bytes
from workers.load_options import LoadOptions, Progress
from workers.mlx.hybrid.rollback import rollback_rows
from workers.mlx.hybrid.states import RecurrentStates
from workers.mlx.loading.model import load_architecture, quantize_matrices
from workers.mlx.lora.adapter_store import LinearAdapterStore, adapter_places
from workers.mlx.lora.row_adapters import StepAdapters, add_row_adapters
from workers.mlx.modules.parts import cast_parameters
from workers.mlx.probe import verifies_drafts
from workers.mlx.rows_format import rows_format
from workers.mlx.runtime.device import (
    adds_in_order,
    choose_device,
    evaluate_weights,
    maybe_set_recommended_wired_limit,
)
from workers.mlx.runtime.window_ring import DRAFTED_ROWS, kept_rows, most_rows, ring_rows
from workers.mlx.transposed import transpose_matrices
from workers.mlx.vision.encoder import MlxTower
from workers.mlx.vision.loading import open_tower
from workers.precision import Quantize, WeightDtype

PREFILL_CHUNKS = (32, 128, 512)


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """The model of an `MlxRunner`, and all that is loaded beside it."""

    model: Any
    config: ModelConfig
    capabilities: RunnerCapabilities
    device: mx.Device
    options: LoadOptions
    ring: int = 0
    """Rows that layers with a window keep of a slot; 0 is all."""
    tower: MlxTower | None = None
    adapters: StepAdapters | None = None
    adapter_slots: LinearAdapterStore | None = None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of a load, and rows that follow from them."""

    row: int
    weights: int
    state: int
    """The state of a slot: recurrent, or the rows that windows read."""
    window: int
    """The ring of a slot."""
    ring: int
    rollback: int
    kv_rows: int


def load_parts(path: Path, config: ModelConfig, options: LoadOptions, progress: Progress) -> RunnerParts:
    """Load a checkpoint, see `MlxRunner.load`."""
    context, quantize = config.choose_context(options.context), options.quantize
    config.check_kv_dtype(options.kv_dtype)
    name, device = choose_device(options.device)
    if not verifies_drafts(name):  # drafts of the head could not be verified
        config = config.without_mtp()
    ring = ring_rows(config, options.slots, context) if options.window_cache == "ring" else 0
    config = config.with_ring() if ring else config
    if name == "gpu":
        # macOS pages out what is not wired, and a model that is paged decodes many times slower.
        maybe_set_recommended_wired_limit()
    kind = config.dtype if options.dtype == "auto" else options.dtype
    vision = open_tower(path, kind, options.mmproj) if options.vision else None
    places = adapter_places(config, options)
    beside = 0 if vision is None else vision.nbytes
    beside += 0 if places is None else places.nbytes(getattr(mx, kind).size)
    sizes = _sizes(path, config, replace(options, context=context), kind, ring, beside, drafts=verifies_drafts(name))
    step, modules = StepAdapters() if options.lora_modules or places else None, options.lora_modules
    stores: list[LinearAdapterStore] = []

    def added(model: Any) -> None:
        if places is not None:
            stores.append(LinearAdapterStore(model, places, step or StepAdapters(), device))
        elif step is not None:
            add_row_adapters(model, config, modules, options.max_lora_rank, step)

    with mx.stream(device):
        compiled = device.type != mx.cpu
        model = load_architecture(
            path, config, context, quantize, compiled=compiled, adapter=options.adapter, added=added
        )
        if config.state_layers and name == "cpu":
            # Else its modules would run a C++ compiler and load the result from a folder that others can write to.
            mx.disable_compile()
        if quantize != "none":
            quantize_matrices(path, model, 8 if quantize == "int8" else 4)
        cast_parameters(model, getattr(mx, kind))
        if adds_in_order(device):
            transpose_matrices(model)
        evaluate_weights(model, progress)
        for store in stores:
            store.load(modules)
        tower = None if vision is None else vision.load(device)
    capabilities = _capabilities(path, config, replace(options, context=context), name, kind, sizes, tower)
    return RunnerParts(model, config, capabilities, device, options, ring, tower, step, stores[0] if stores else None)


def _sizes(
    path: Path, config: ModelConfig, options: LoadOptions, kind: WeightDtype, ring: int, beside: int, *, drafts: bool
) -> _Sizes:
    """Compute the memory of a load, with `beside` bytes of weights that are not the model's. Raises `MemoryRefused`
    where there is less."""
    item, slots = getattr(mx, kind).size, options.slots
    row = kv_row_bytes(config, item, options.kv_dtype)
    in_rings = kv_row_bytes(replace(config, window_ring=False), item, options.kv_dtype) - row
    free = free_bytes()
    weights = weight_bytes(open_weights(path, options.quantize), kind, options.quantize, mtp=config.mtp)
    later = max(0, spare_bytes() + options.leaving_bytes - options.reserved_bytes)
    state = RecurrentStates(config, 1, getattr(mx, kind)).slot_bytes if config.state_layers else 0
    rollback = rollback_rows(config) if drafts and config.state_layers else 0
    # Those before the rows of a step beside those of the slots.
    states = state * (slots + (most_rows(slots) if rollback else 0)) + slots * ring * in_rings
    held = weights + beside
    needed = Needed.of(held, row, slots, options.context, options.kv_bytes, later, options.workers, states)
    quantizable = config.quantization is None
    needed.check(free, options.quantize, quantizable=quantizable, leaving=options.leaving_bytes)
    if ring:
        state, rollback = (config.widest_window - 1) * in_rings, most_rows(slots)
    return _Sizes(row, weights, state, ring * in_rings, ring, rollback, needed.kv // row)


def _capabilities(
    path: Path,
    config: ModelConfig,
    options: LoadOptions,
    device: str,
    kind: WeightDtype,
    sizes: _Sizes,
    tower: MlxTower | None,
) -> RunnerCapabilities:
    """Describe the runner of a loaded model."""
    width = config.hidden_size if config.choose_embeddings(options.embeddings) else 0
    drafts = verifies_drafts(device) and (sizes.rollback or not sizes.state)
    return RunnerCapabilities(
        backend="mlx",
        device=device,
        dtype=kind,
        slots=options.slots,
        context=options.context,
        vocab_size=config.vocab_size,
        prefill_chunks=tuple(sorted({min(chunk, options.context) for chunk in PREFILL_CHUNKS})),
        # On a CPU, as the gate tests: under Linux MLX adds one term after the other there. Kernels of other devices
        # change with the number of rows.
        exact_rows=device == "cpu",
        decode_rows=options.slots + DRAFTED_ROWS if drafts else 0,
        row_bytes=sizes.row,
        weight_bytes=sizes.weights,
        kv_rows=sizes.kv_rows,
        quantization=_quantization(open_weights(path, options.quantize), config, options.quantize),
        rows_format=rows_format(
            path,
            kind,
            options.quantize,
            options.kv_dtype,
            options.context,
            device,
            adapter=options.adapter,
            adapters=adapters_digest(options.lora_modules),
            mtp=config.mtp,
            ring=sizes.ring,
        ),
        adapters=tuple(each for each, _ in options.lora_modules),
        adapter_places=options.runtime_loras,
        embedding_width=width if tower is None else tower.config.choose_width(width),
        state_bytes=sizes.state,
        rollback_rows=sizes.rollback,
        window_rows=kept_rows(sizes.ring, options.slots) if sizes.ring else 0,
        window_reach=config.widest_window - 1 if sizes.ring else 0,
        window_bytes=sizes.window,
        bidirectional_images=tower is not None and tower.config.bidirectional != "none",
        hidden_width=config.hidden_size,
    )


def _quantization(weights: Weights, config: ModelConfig, quantize: Quantize) -> str:
    if isinstance(weights, GgufWeights) and quantize == "none":
        return weights.widths()
    if isinstance(weights, LowBitWeights) and quantize == "none":
        return weights.widths(mlx=True)
    if config.quantization is not None:
        return config.quantization.widths
    return "" if quantize == "none" else quantize
