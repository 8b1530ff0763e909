"""What decides the graphs of a model: from a recipe every process traces the same ones."""

from pathlib import Path

from msgspec import Struct

from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.iree.build.compiler import Compiler
from workers.iree.build.plan import Plan, decode_buckets, prefill_chunks
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, DeviceError
from workers.iree.kernels.attention.attention import POSITIONS
from workers.iree.kernels.ir.builder import LANES
from workers.iree.kernels.matmul.arithmetic import arithmetic_of
from workers.iree.kernels.matmul.quantized_product import choose_dot
from workers.iree.model.ops import Cache
from workers.iree.model.packing import GROUPS
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import quantization_of, stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.precision import Dtype, Quantize

PLAIN_TILE = 16
"""Rows to which the plain cache's capacity is rounded."""


class Recipe(Struct, frozen=True):
    """The arguments of a load that matter to its graphs. Travels to the compile process as JSON."""

    model: str
    """The checkpoint's directory; its config.json and what its files say of their tensors are read."""
    dtype: Dtype
    local: bool
    """As the device's."""
    slots: int
    context: int
    flags: tuple[str, ...]
    """iree-compile's."""
    target: str
    cache_dir: str
    quantize: Quantize = "none"
    threads: int = 1
    """The device's, where it is local."""

    @classmethod
    def of(
        cls,
        path: Path,
        config: ModelConfig,
        device: Device,
        *,
        dtype: Dtype,
        quantize: Quantize,
        slots: int,
        context: int,
        cache_dir: Path,
    ) -> "Recipe":
        """The recipe of a load on an opened device. Raises `CheckpointError` and `DeviceError`."""
        ops = choose_ops(config, dtype, local=device.local, threads=device.threads)
        device.check(ops.dtype)
        if quantize != "none" and not isinstance(ops, TiledOps):
            raise DeviceError(
                f"device: {device.uri!r} has no products with {quantize} weights for this model: leave --quantize out"
            )
        return cls(
            model=str(path),
            dtype=dtype,
            quantize=quantize,
            local=device.local,
            slots=slots,
            context=config.choose_context(context),
            flags=device.compile_flags(),
            target=device.compile_target(),
            cache_dir=str(cache_dir),
            threads=device.threads,
        )

    def plan(self) -> Plan:
        """Raises `CheckpointError`."""
        config = ModelConfig.from_dir(Path(self.model))
        ops = choose_ops(config, self.dtype, local=self.local, threads=self.threads)
        tiled = isinstance(ops, TiledOps)
        if config.experts is not None and not tiled:
            only = f"run on CPUs only, in widths that are multiples of {LANES}: take a CPU or --backend mlx"
            problem = f"the experts of {config.family} {only}"
            raise CheckpointError(Path(self.model) / "config.json", "architectures", problem)
        cache = Cache.of(config, self.slots, self.context, POSITIONS if isinstance(ops, TiledOps) else PLAIN_TILE)
        stored = stored_parameters(config, ops, open_weights(Path(self.model)), self.quantize)
        if self.quantize != "none" and not quantization_of(stored):
            problem = f"no matrix has rows of whole groups of {GROUPS[-1]}: none can be made {self.quantize}"
            raise CheckpointError(Path(self.model) / "config.json", "hidden_size", problem)
        # One decode graph where its rows cost next to nothing and kernels may change with their number.
        buckets = decode_buckets(self.slots) if tiled else (self.slots,)
        return Plan(config, ops, cache, stored, buckets, prefill_chunks(self.context))

    def compiler(self) -> Compiler:
        """Raises `CacheError`."""
        return Compiler(Path(self.cache_dir), self.flags, self.target)


def choose_ops(config: ModelConfig, dtype: Dtype, *, local: bool, threads: int = 1) -> TiledOps | PlainOps:
    """Kernels of our own on a CPU, where the model's widths are multiples of a vector; plain StableHLO elsewhere.

    `dtype` "auto" is the checkpoint's.
    """
    kind = config.dtype if dtype == "auto" else dtype
    widths = [config.hidden_size, config.ffn, config.head_dim]
    if config.experts is not None:
        widths.append(config.experts.ffn)
    pairs = all(rope.dims % 4 == 0 for rope in config.ropes)  # each half of what is turned, in pairs of bfloat16
    if local and pairs and all(width % LANES == 0 for width in widths):
        cpu = Cpu.of_host()
        arithmetic, dot = arithmetic_of(cpu.features, kind), choose_dot(cpu.features)
        return TiledOps(kind, arithmetic, dot, threads, cpu.pause)
    return PlainOps(kind)
