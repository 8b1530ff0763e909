"""The recipe of an encoder's graphs: every process traces the same ones from it."""

from pathlib import Path

from msgspec import Struct

from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.reading import read_encoder
from workers.checkpoints.encoders.tensors import encoder_tensors, prefix_of
from workers.iree.build.compiler import Compiler
from workers.iree.build.encoder.plan import EncoderPlan
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device, DeviceError
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.integer_dots import choose_integer_dots
from workers.iree.kernels.matmul.packing import GROUPS
from workers.iree.model.encoder.forward import encoder_parameters
from workers.iree.model.encoder.operations import PlainEncoderOps, TiledEncoderOps
from workers.iree.model.stored_parameters import quantization_of, store_each
from workers.load_options import LoadOptions
from workers.precision import CpuTarget, Dtype, Quantize


class EncoderRecipe(Struct, frozen=True, tag="encoder"):
    """The options of a load that the graphs of an encoder depend on. It is sent to the compile process as JSON."""

    model: str
    """The checkpoint's directory, of which config.json and the headers of the tensors are read."""
    dtype: Dtype
    local: bool
    """See `Device.local`."""
    context: int
    flags: tuple[str, ...]
    """iree-compile's."""
    target: str
    cache_dir: str
    quantize: Quantize = "none"
    cpu: CpuTarget = "host"
    threads: int = 1
    """Compute threads of a local device."""

    @classmethod
    def of(cls, path: Path, config: EncoderConfig, device: Device, options: LoadOptions) -> "EncoderRecipe":
        """Return the recipe of a load on an opened device. Raises `LoadRefused`, also as its subclasses."""
        device.check(config.dtype if options.dtype == "auto" else options.dtype)
        if options.quantize != "none" and not device.local:
            raise DeviceError(
                f"device: {device.uri!r} has no products with {options.quantize} weights: leave --quantize out"
            )
        return cls(
            model=str(path),
            dtype=options.dtype,
            local=device.local,
            context=config.choose_context(options.context),
            flags=device.compile_flags(),
            target=device.compile_target(),
            cache_dir=str(options.cache_dir),
            quantize=options.quantize,
            cpu=options.cpu,
            threads=device.threads,
        )

    def plan(self) -> EncoderPlan:
        """Return the graphs. Raises `CheckpointError`."""
        path = Path(self.model)
        config, weights = read_encoder(path), open_weights(path)
        ops = self._ops(config)
        tensors = encoder_tensors(config, prefix_of(config, weights))
        stored = store_each(encoder_parameters(tensors, ops.dtype), ops, weights, self.quantize)
        if self.quantize != "none" and not quantization_of(stored):
            problem = f"no matrix has rows of whole groups of {GROUPS[-1]}: none can be made {self.quantize}"
            raise CheckpointError(path / "config.json", "hidden_size", problem)
        return EncoderPlan(config, ops, stored, self.context)

    def _ops(self, config: EncoderConfig) -> TiledEncoderOps | PlainEncoderOps:
        kind = config.dtype if self.dtype == "auto" else self.dtype
        if not self.local:
            return PlainEncoderOps(kind)
        for name, width in (
            ("hidden_size", config.hidden_size),
            ("num_attention_heads", config.head_dim),
            ("intermediate_size", config.ffn),
        ):
            if width % LANES:
                problem = f"{width} lanes are no multiple of {LANES}, which the kernels for CPUs need"
                raise CheckpointError(Path(self.model) / "config.json", name, f"{problem}: take --backend mlx")
        chosen = Cpu.named(self.cpu)
        arithmetic, dots = arithmetic_of(chosen.features, kind), choose_integer_dots(chosen.features)
        return TiledEncoderOps(kind, arithmetic, dots, self.threads, chosen.pause)

    def compiler(self) -> Compiler:
        """Return the compiler with its cache. Raises `CacheError`."""
        return Compiler(Path(self.cache_dir), self.flags, self.target)
