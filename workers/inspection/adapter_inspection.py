"""Inspects a LoRA adapter: what it is, and whether it fits a model, by the headers of its files."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from workers.checkpoints.adapter_files import ADAPTER_CONFIG
from workers.checkpoints.documents import CONFIG
from workers.checkpoints.json_files import read_json
from workers.checkpoints.lora.adapter_weights import AdapterWeights
from workers.errors import LoadRefused
from workers.process.backends import choose_backend, served_config
from workers.process.spec import WorkerSpec
from workers.process.startup.lora import lora_digest

BASE_FIELDS = ("base_model_name_or_path", "model")
"""The fields of an adapter's description that name its model: PEFT's, and mlx-lm's."""
MAX_BASE = 1024
"""Characters of a model's name there; a longer one is none."""
_NAME = "adapter"


@dataclass(frozen=True, slots=True)
class AdapterInspection:
    """Everything that is known of an adapter before it is loaded."""

    path: str
    base_model: str
    """The model that it was trained for, as its description names it; empty if it does not."""
    layout: str = ""
    """`peft` or `mlx`; empty for an adapter that cannot be read."""
    ranks: tuple[int, ...] = ()
    """The different ranks of its modules."""
    scales: tuple[float, ...] = ()
    """The different factors of what it adds."""
    modules: dict[str, int] | None = None
    """The modules that it changes by the last parts of their names, each with the number of its layers."""
    parameters: int = 0
    file_bytes: int = 0
    """Bytes of its tensors' file."""
    model: str = ""
    """The path of the model that it was compared with; empty if there was none."""
    problem: str = ""
    """Why it cannot be loaded with that model, or at all; empty if it can."""

    @property
    def served(self) -> bool:
        """Requests could name it, as far as it was compared with a model."""
        return not self.problem

    @classmethod
    def of(cls, path: Path, spec: WorkerSpec | None, max_rank: int) -> "AdapterInspection":
        """Read the description of an adapter of ranks up to `max_rank`, and the headers of its tensors, and compare
        them with the model of `spec`."""
        base = base_model(path)
        model = "" if spec is None else spec.model_path
        try:
            adapter = AdapterWeights(_NAME, path, max_rank)
        except (LoadRefused, OSError) as error:
            return cls(str(path), base, model=model, problem=str(error))
        pairs = adapter.pairs
        return cls(
            str(path),
            base,
            adapter.config.layout,
            tuple(sorted({each.rank for each in pairs.values()})),
            tuple(sorted({adapter.config.scale_of(module) for module in pairs})),
            dict(sorted(Counter(module.rpartition(".")[2] for module in pairs).items())),
            sum(each.rank * (each.inputs + each.outputs) for each in pairs.values()),
            adapter.config.file.stat().st_size,
            model,
            "" if spec is None else _misfit(spec, path, max_rank),
        )


def is_adapter(path: Path) -> bool:
    """Return whether a directory has an adapter, and no model."""
    return (path / ADAPTER_CONFIG).is_file() and not (path / CONFIG).exists()


def base_model(path: Path) -> str:
    """Return the model that an adapter was trained for, as its description names it; empty if it does not."""
    try:
        fields = read_json(path / ADAPTER_CONFIG)
    except LoadRefused:
        return ""
    named = (fields.get(each) for each in BASE_FIELDS)
    return next((each for each in named if isinstance(each, str) and each.isprintable() and len(each) <= MAX_BASE), "")


def _misfit(spec: WorkerSpec, path: Path, max_rank: int) -> str:
    """Return why an adapter does not fit the model of a spec; empty if it does."""
    wanted = replace(spec, lora_modules={_NAME: str(path)}, max_lora_rank=max_rank)
    try:
        lora_digest(wanted, choose_backend(wanted), served_config(wanted))
    except (LoadRefused, OSError) as error:
        return str(error).removeprefix(f"lora_modules: {_NAME}: ")
    return ""
