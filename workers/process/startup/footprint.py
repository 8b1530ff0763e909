"""Describes the memory that a worker will take, before it is loaded: by its context, if that is left open."""

from dataclasses import dataclass
from pathlib import Path

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.memory import estimate_encoder
from workers.checkpoints.lone_config import LoneConfig
from workers.checkpoints.memory_estimate import estimate_weights
from workers.process.backends import choose_backend, served_config, slots_of
from workers.process.spec import WorkerSpec
from workers.process.startup.context_choice import (
    ContextChoice,
    addressed_rows,
    allocates_cache,
    both_row_bytes,
    kind_of,
    ring_bytes,
)
from workers.process.startup.lora import adapter_bytes
from workers.process.startup.state_sizes import all_states_bytes
from workers.process.startup.vision_size import vision_bytes


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one worker."""

    weights: int
    """Those of the draft model, and of adapters and their places, included, if there are any."""
    row_bytes: int
    """Bytes of the KV cache of one token, with that of the draft model."""
    rows: int
    """Tokens of KV cache that it takes with the least context."""
    least: int
    """Tokens of the least context: the one that is set, or the default where memory is short."""
    most: int
    """Tokens of the largest context; equal to `least` if it is not left open."""
    states: int = 0
    """Bytes of the recurrent states of all slots, of the draft model as well."""
    alone: bool = False
    """It computes one sequence at a time, whatever the settings say."""

    @property
    def fixed(self) -> int:
        """Bytes that a worker takes whatever its context is."""
        return self.weights + self.states

    @classmethod
    def of(cls, spec: WorkerSpec) -> "Footprint":
        """Read the description of a model, not its weights. Its memory is rather too much than too little. A scripted
        worker takes none. Raises what `describe` raises."""
        backend = choose_backend(spec)
        if backend == "scripted":
            return cls(0, 0, 0, spec.context, spec.context)
        path = Path(spec.model_path)
        config = served_config(spec)
        one = both_row_bytes(spec, backend, config)
        least = config.choose_context(spec.context)
        most = least
        if not spec.context and spec.kv_bytes:
            least = most = ContextChoice.of(spec, backend, config).context
        elif not spec.context and not allocates_cache(spec, backend):
            most = max(least, min(config.max_positions, addressed_rows(spec, one)))
        rows = slots_of(spec, config) * least
        if spec.kv_bytes and one:
            rows = min(rows, spec.kv_bytes // one)
        paths = [path, Path(spec.draft_model)] if spec.draft_model else [path]
        if isinstance(config, LoneConfig):
            weights, states = config.weight_bytes(path, spec.dtype), 0
        elif isinstance(config, EncoderConfig):
            weights, states = estimate_encoder(config, spec.dtype, spec.quantize), 0
        else:
            weights = sum(estimate_weights(each, dtype=spec.dtype, quantize=spec.quantize) for each in paths)
            weights += vision_bytes(spec, kind_of(spec, config)) + adapter_bytes(spec, config)
            states = sum(all_states_bytes(spec, backend, ModelConfig.from_dir(each)) for each in paths)
            states += ring_bytes(spec, backend, config)
        return cls(weights, one, rows, least, most, states, isinstance(config, LoneConfig))
