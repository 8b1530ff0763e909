"""Inspects a checkpoint: what it is, which backends serve it, where its tensors go and what memory it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.checkpoints.documents import read_fields
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.lone_config import LoneConfig
from workers.errors import LoadRefused
from workers.inspection.description import Description
from workers.inspection.memory_figures import MemoryFigures
from workers.inspection.servable import Servable
from workers.inspection.served_tasks import ServedTasks
from workers.inspection.tensor_map import TensorMap
from workers.inspection.tower_view import TowerView, map_tower
from workers.process.backends import served_config
from workers.process.spec import WorkerSpec

Mode = Literal["batched", "alone", "refused"]
ADDING = "docs/adding-a-model.md"
DOCUMENTS = (
    ("model_type", ADDING),
    ("architectures", ADDING),
    ("general.architecture", "docs/operations/quantization.md#gguf-files"),
    ("quantization", "docs/operations/quantization.md#quantize-a-model"),
    ("max_position_embeddings", "docs/operations/memory.md#kv-cache"),
)
"""The page that explains a refusal, by the beginning of the field that it names."""
FEATURES, ALONE = "docs/features.md", "docs/operations/models.md#models-that-run-alone"


@dataclass(frozen=True, slots=True)
class BackendSupport:
    """The support of one backend for a checkpoint."""

    backend: str
    mode: Mode
    context: int = 0
    """Tokens of one sequence with the settings that were given."""
    problem: str = ""
    """Why it is refused."""
    document: str = ""
    """The page that explains it."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that is known of a checkpoint before it is loaded."""

    path: str
    description: Description
    backends: tuple[BackendSupport, ...]
    tensors: TensorMap | None
    """None if the files cannot be read; the backends then have the reason."""
    memory: MemoryFigures | None
    """On the first backend that serves it."""
    vision: TowerView
    tasks: ServedTasks
    """Those of the first backend that serves it."""

    @property
    def served(self) -> bool:
        """At least one backend here serves it."""
        return any(each.mode != "refused" for each in self.backends)

    @classmethod
    def of(cls, spec: WorkerSpec, backends: Sequence[str]) -> "Inspection":
        """Read the description of the checkpoint of `spec` and the headers of its weight files. Raises
        `CheckpointError` for a description that cannot be read."""
        path = Path(spec.model_path)
        fields = read_fields(path)
        specs = [replace(spec, backend=backend) for backend in backends]
        supports = [_support(each) for each in specs]
        served = next((number for number, each in enumerate(supports) if each.mode != "refused"), 0)
        config = _config(specs[served])
        mapped = _map(spec, config, supports[served].problem)
        if (
            mapped is not None
            and isinstance(config, ModelConfig | EncoderConfig)
            and (wrong := mapped.problem()) is not None
        ):
            problem = f"{path}: {wrong.name}: {wrong.why}"
            supports = [_refused(each, problem) if each.mode == "batched" else each for each in supports]
        memory = None
        if supports[served].mode != "refused" and config is not None:
            memory = MemoryFigures.of(specs[served], supports[served].backend, config)
        description, vision = Description.of(path, fields, config), TowerView.of(path, spec.mmproj)
        tasks = ServedTasks()
        if supports[served].mode != "refused" and config is not None:
            tasks = ServedTasks.of(path, config)
        return cls(str(path), description, tuple(supports), mapped, memory, vision, tasks)


def _support(spec: WorkerSpec) -> BackendSupport:
    found = Servable.of(spec)
    if found.problem:
        document = next((page for start, page in DOCUMENTS if found.field.startswith(start)), FEATURES)
        return BackendSupport(spec.backend, "refused", problem=found.problem, document=document)
    return BackendSupport(
        spec.backend, "alone" if found.alone else "batched", found.context, document=ALONE if found.alone else ""
    )


def _refused(support: BackendSupport, problem: str) -> BackendSupport:
    return BackendSupport(support.backend, "refused", problem=problem, document=FEATURES)


def _config(spec: WorkerSpec) -> ModelConfig | LoneConfig | EncoderConfig | None:
    """Return the description that the backend of `spec` loads, or that any could; None if there is none."""
    try:
        return served_config(spec)
    except LoadRefused:
        pass
    try:
        return ModelConfig.from_dir(Path(spec.model_path))
    except LoadRefused:
        return None


def _map(spec: WorkerSpec, config: ModelConfig | LoneConfig | EncoderConfig | None, problem: str) -> TensorMap | None:
    path = Path(spec.model_path)
    try:
        mapped = TensorMap.of(path, config, problem)
    except CheckpointError:
        return None
    return map_tower(path, spec.mmproj, mapped) if isinstance(config, ModelConfig) else mapped
