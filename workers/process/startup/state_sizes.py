"""The bytes of recurrent states on each backend, as they are known before a model is loaded."""

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.lone_config import LoneConfig
from workers.checkpoints.weight_size import ITEM_BYTES
from workers.engine.states.snapshot_store import OVERHEAD_BYTES
from workers.errors import LoadRefused
from workers.iree.model.state_versions import state_versions
from workers.iree.model.width_padding import WidthPadding
from workers.process.spec import WorkerSpec


def one_state_bytes(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> int:
    """Return the bytes of the recurrent state of one slot; 0 without one, and where only a load tells.

    IREE has all values in float32, those of padded widths included. MLX has the last inputs of convolutions in the type
    of the model.
    """
    if not isinstance(config, ModelConfig):
        return 0
    if backend == "iree":
        padding = WidthPadding.of(config)
        return (config if padding is None else padding.config(config)).state_bytes
    item = ITEM_BYTES[config.dtype if spec.dtype == "auto" else spec.dtype]
    return config.state_bytes - (4 - item) * config.conv_state_values


def all_states_bytes(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> int:
    """Return the bytes of the recurrent states of all slots: on IREE with those that rows are taken back to, as on a
    CPU; elsewhere there are fewer."""
    slots = spec.max_batch_size
    versions = state_versions(config, slots) if backend == "iree" and isinstance(config, ModelConfig) else 1
    return slots * versions * one_state_bytes(spec, backend, config)


def check_state_cache(spec: WorkerSpec, backend: str, config: ModelConfig | LoneConfig | EncoderConfig) -> None:
    """Raise `LoadRefused` for a size of the cache of states that was set and is too small for one of them."""
    state = one_state_bytes(spec, backend, config)
    if state and spec.prefix_cache and spec.state_cache_bytes and "state_cache_bytes" in spec.sources:
        check_bytes(spec, state)


def check_bytes(spec: WorkerSpec, state: int) -> None:
    """Raise `LoadRefused` if the cache of states is too small for one of `state` bytes."""
    least = state + OVERHEAD_BYTES
    if spec.state_cache_bytes < least:
        reason = f"a state of {spec.model_name} takes {least}, more than {spec.state_cache_bytes}"
        raise LoadRefused(f"state_cache_bytes: {reason}: set {least} at least, or 0 to keep none")
