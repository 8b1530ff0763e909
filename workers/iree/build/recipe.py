"""The recipe of a model's graphs: every process traces the same ones from it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.parts import LatentAttention
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.gguf.find import MMPROJ_AUTO
from workers.checkpoints.lora.adapted_matrices import adapter_stacks, read_adapters
from workers.checkpoints.lora.adapter_places import AdapterPlaces
from workers.iree.build.compiler import Compiler
from workers.iree.build.graph_list import decode_buckets, prefill_chunks
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, DeviceError
from workers.iree.device.drivers import verifies_drafts
from workers.iree.kernels.attention.shape import CAPACITY_MULTIPLE
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.integer_dots import choose_integer_dots
from workers.iree.kernels.matmul.packing import GROUPS
from workers.iree.lora.lora_plan import LoraPlan
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.state_versions import rollback_rows
from workers.iree.model.stored_parameters import Stored, quantization_of, stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.width_padding import WidthPadding
from workers.iree.model.window_ring import ring_rows
from workers.load_options import LoadOptions
from workers.precision import CpuTarget, Dtype, KvDtype, Quantize, WindowCache
from workers.vision.tower import find_tower

PLAIN_CAPACITY_MULTIPLE = 16
"""Rows to which the plain cache's capacity is rounded."""


class Recipe(Struct, frozen=True, tag="decoder"):
    """The options of a load that its graphs depend on. It is sent to the compile process as JSON."""

    model: str
    """The checkpoint's directory, of which config.json and the headers of the tensors are read."""
    dtype: Dtype
    local: bool
    """See `Device.local`."""
    slots: int
    context: int
    flags: tuple[str, ...]
    """iree-compile's."""
    target: str
    cache_dir: str
    quantize: Quantize = "none"
    kv_dtype: KvDtype = "auto"
    cpu: CpuTarget = "host"
    mtp: bool = False
    """See `ModelConfig.mtp`. False where a step has no room for drafts, or cannot verify them."""
    threads: int = 1
    """Compute threads of a local device."""
    embeddings: bool = False
    """There are graphs for prompts with rows of embeddings."""
    queries: bool = False
    """There is a graph of the queries of a few rows."""
    vision: bool = False
    """The graphs of the checkpoint's vision tower are among them, and those for its rows of embeddings."""
    mmproj: str = MMPROJ_AUTO
    """The file with that tower, as in `LoadOptions`."""
    window_cache: WindowCache = "full"
    lora_modules: tuple[tuple[str, str], ...] = ()
    """Names and directories of adapters that requests choose, of which the headers of the tensors are read."""
    max_lora_rank: int = 0
    runtime_loras: int = 0
    """See `LoadOptions`."""

    @classmethod
    def of(cls, path: Path, config: ModelConfig, device: Device, options: LoadOptions) -> "Recipe":
        """Return the recipe of a load on an opened device. Raises `LoadRefused`, also as its subclasses."""
        ops = choose_ops(config, options.dtype, local=device.local, threads=device.threads, cpu=options.cpu)
        device.check(ops.dtype)
        config.check_kv_dtype(options.kv_dtype)
        if options.quantize != "none" and not isinstance(ops, TiledOps):
            raise DeviceError(
                f"device: {device.uri!r} has no products with {options.quantize} weights: leave --quantize out"
            )
        return cls(
            model=str(path),
            dtype=options.dtype,
            quantize=options.quantize,
            kv_dtype=options.kv_dtype,
            cpu=options.cpu,
            local=device.local,
            slots=options.slots,
            context=config.choose_context(options.context),
            flags=device.compile_flags(),
            target=device.compile_target(),
            cache_dir=str(options.cache_dir),
            mtp=config.mtp and verifies_drafts(device.uri, options.slots) and _takes_back(config, options.slots),
            threads=device.threads,
            embeddings=config.choose_embeddings(options.embeddings),
            queries=options.attention,
            vision=_has_tower(path, config, options),
            mmproj=options.mmproj,
            window_cache=options.window_cache if device.local else "full",
            lora_modules=tuple((name, str(path)) for name, path in options.lora_modules),
            max_lora_rank=options.max_lora_rank,
            runtime_loras=options.runtime_loras,
        )

    def plan(self) -> GraphPlan:
        """Return the graphs. Raises `CheckpointError`."""
        config = ModelConfig.from_dir(Path(self.model))
        config = config.with_mtp() if self.mtp else config
        ops = choose_ops(config, self.dtype, local=self.local, threads=self.threads, cpu=self.cpu)
        tiled = isinstance(ops, TiledOps)
        if config.experts is not None and not tiled:
            problem = f"the experts of {config.family} run on CPUs only: take a CPU or --backend mlx"
            raise CheckpointError(Path(self.model) / "config.json", "architectures", problem)
        for name, lanes in _recurrent_lanes(config):
            if tiled and lanes % LANES:
                problem = f"{lanes} is no multiple of {LANES}, which the kernels for CPUs need: take --backend mlx"
                raise CheckpointError(Path(self.model) / "config.json", name, problem)
        if tiled and config.latent is not None:
            self._check_latent(config.latent)
        stored = stored_parameters(config, ops, open_weights(Path(self.model), self.quantize), self.quantize)
        lora = self._lora(config, ops, stored) if self.lora_modules or self.runtime_loras else None
        if isinstance(ops, TiledOps) and ops.padding is not None:
            config = ops.padding.config(config)
        multiple = CAPACITY_MULTIPLE if tiled else PLAIN_CAPACITY_MULTIPLE
        ring = ring_rows(config, self.slots, self.context) if tiled and self.window_cache == "ring" else 0
        config = config.with_ring() if ring else config
        cache = CacheLayout.of(config, self.slots, self.context, multiple, self.kv_dtype, ring)
        if tiled:
            self._check_widths(cache)
        if self.quantize != "none" and not quantization_of(stored):
            problem = f"no matrix has rows of whole groups of {GROUPS[-1]}: none can be made {self.quantize}"
            raise CheckpointError(Path(self.model) / "config.json", "hidden_size", problem)
        # One decode graph where rows cost next to nothing and kernels may change with their number.
        buckets = decode_buckets(self.slots) if tiled else (self.slots,)
        chunks = prefill_chunks(self.context)
        tower = find_tower(Path(self.model), self.mmproj) if self.vision else None
        return GraphPlan(
            config,
            ops,
            cache,
            stored,
            buckets,
            chunks,
            embeddings=self.embeddings or tower is not None,
            queries=self.queries,
            vision=None if tower is None else tower.config,
            lora=lora,
        )

    def _lora(self, config: ModelConfig, ops: TiledOps | PlainOps, stored: Sequence[Stored]) -> LoraPlan:
        """Return the matrices that adapters change. Raises `LoadRefused`."""
        if self.runtime_loras and not isinstance(ops, TiledOps):
            problem = "lora_dirs: adapters are loaded at run time on CPUs only: take a CPU or --backend mlx"
            raise DeviceError(f"{problem}, or load them with the model by --lora-modules")
        modules = [(name, Path(path)) for name, path in self.lora_modules]
        if self.runtime_loras:
            places = AdapterPlaces(config, len(modules) + self.runtime_loras, self.max_lora_rank)
            return LoraPlan.of(places.stacks, stored, ops)
        return LoraPlan.of(adapter_stacks(config, read_adapters(modules, self.max_lora_rank)), stored, ops)

    def _check_latent(self, kind: LatentAttention) -> None:
        """Refuse sizes of latent attention that are no whole vectors. Raises `CheckpointError`."""
        for name, lanes in (
            ("kv_lora_rank", kind.rank),
            ("q_lora_rank", kind.query_rank or 0),
            ("qk_nope_head_dim", kind.passed),
            ("qk_rope_head_dim", kind.rotated),
            ("v_head_dim", kind.values),
        ):
            if lanes % LANES:
                problem = f"{lanes} is no multiple of {LANES}, which the kernels for CPUs need: take --backend mlx"
                raise CheckpointError(Path(self.model) / "config.json", name, problem)

    def _check_widths(self, cache: CacheLayout) -> None:
        """Refuse heads of keys and values that are no whole vectors, of levels of 4 bits two."""
        multiple = 2 * LANES if self.kv_dtype == "int4" else LANES
        for width in (width for group in cache.groups for width in group.widths):
            if width % multiple:
                advice = "set --kv-dtype int8" if self.kv_dtype == "int4" else "take --backend mlx"
                problem = f"heads of {width} lanes are no multiple of {multiple}: {advice}"
                raise CheckpointError(Path(self.model) / "config.json", "head_dim", problem)

    def compiler(self) -> Compiler:
        """Return the compiler with its cache. Raises `CacheError`."""
        return Compiler(Path(self.cache_dir), self.flags, self.target)


def _has_tower(path: Path, config: ModelConfig, options: LoadOptions) -> bool:
    """Return whether the vision tower is loaded, if there is one. Raises `LoadRefused` for rows of embeddings of
    requests that have another width than those of its images."""
    tower = find_tower(path, options.mmproj) if options.vision else None
    if tower is not None:
        tower.config.choose_width(config.hidden_size if options.embeddings else 0)
    return tower is not None


def _takes_back(config: ModelConfig, slots: int) -> bool:
    """Return whether rejected drafts can be taken back from the recurrent state of a model, if it has one."""
    return not config.state_layers or rollback_rows(config, slots) > 1


def _recurrent_lanes(config: ModelConfig) -> Iterator[tuple[str, int]]:
    """List the lanes of the heads of recurrent layers, by the field of config.json that states them."""
    if (delta := config.delta) is not None:
        yield from (("linear_key_head_dim", delta.key_dim), ("linear_value_head_dim", delta.value_dim))
    if (mamba := config.mamba) is not None:
        names = FAMILIES[config.family].field_names if config.family in FAMILIES else {}
        for name, lanes in (("mamba_d_head", mamba.head_dim), ("mamba_d_state", mamba.state)):
            yield names.get(name, name), lanes


def choose_ops(
    config: ModelConfig, dtype: Dtype, *, local: bool, threads: int = 1, cpu: CpuTarget = "host"
) -> TiledOps | PlainOps:
    """Return the kernels for CPUs on a local device, with the model's padding, and plain StableHLO elsewhere.

    `dtype` "auto" is the checkpoint's.
    """
    kind = config.dtype if dtype == "auto" else dtype
    if not local:
        return PlainOps(kind)
    chosen = Cpu.named(cpu)
    arithmetic, dots = arithmetic_of(chosen.features, kind), choose_integer_dots(chosen.features)
    return TiledOps(kind, arithmetic, dots, threads, chosen.pause, WidthPadding.of(config))
