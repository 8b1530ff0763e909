"""Capabilities that a plan of graphs on a device offers to the scheduler."""

from workers.engine.runner import RunnerCapabilities
from workers.iree.build.compile_client import Builder
from workers.iree.build.weight_archive import Archive
from workers.iree.device.device import Device
from workers.iree.execution.slot_buffers import SlotBuffers
from workers.iree.kv_memory import ring_bytes, row_bytes
from workers.iree.model.stored_parameters import quantization_of
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.window_ring import drafted_rows, kept_rows
from workers.iree.rows_format import rows_format


def capabilities_of(
    builder: Builder, device: Device, archive: Archive, digest: str, buffers: SlotBuffers, kv_rows: int
) -> RunnerCapabilities:
    """Return the capabilities of a runner with these buffers. `digest` is the checkpoint's; `kv_rows` as in
    `RunnerCapabilities`."""
    plan, recipe = builder.plan, builder.recipe
    slots, ring, exact = plan.cache.slots, plan.cache.ring, isinstance(plan.ops, TiledOps)
    return RunnerCapabilities(
        backend="iree",
        device=device.uri,
        dtype=plan.ops.dtype,
        quantization=quantization_of(plan.weights),
        slots=slots,
        context=recipe.context,
        vocab_size=plan.config.vocab_size,
        prefill_chunks=plan.chunks,
        exact_rows=exact,
        decode_rows=plan.buckets[-1] if exact else 0,
        draft_rows=plan.draft_rows,
        block_rows=plan.block or 1,
        row_bytes=row_bytes(plan),
        weight_bytes=archive.nbytes,
        kv_rows=kv_rows,
        rows_format=rows_format(digest, recipe, plan) if buffers.host_kv is not None else "",
        embedding_width=plan.embedding_width,
        bidirectional_images=plan.has_ends,
        state_bytes=buffers.state_bytes,
        rollback_rows=drafted_rows(slots) if ring else plan.state_versions - 1,
        window_rows=kept_rows(ring, slots) if ring else 0,
        window_reach=plan.config.widest_window - 1 if ring else 0,
        window_bytes=ring_bytes(plan),
        hidden_width=plan.hidden_width,
        adapters=tuple(name for name, _ in recipe.lora_modules),
        adapter_places=recipe.runtime_loras,
    )
