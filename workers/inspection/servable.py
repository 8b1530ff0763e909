"""Reports whether a worker could serve a checkpoint, without loading it."""

from dataclasses import dataclass
from pathlib import Path

from workers.checkpoints.documents import has_tokenizer
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.lone_config import LoneConfig
from workers.errors import LoadRefused
from workers.inspection.served_tasks import ServedTasks
from workers.process.backends import check_readable, choose_backend, open_checkpoint, options_of
from workers.process.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Servable:
    """Answer to the question whether a worker of a spec could serve its checkpoint."""

    backend: str = ""
    family: str = ""
    context: int = 0
    """Tokens of prompt and answer together."""
    text: bool = True
    """The checkpoint has a tokenizer. Without one a worker takes and returns token ids only."""
    alone: bool = False
    """It computes one sequence at a time, because only mlx-lm describes its family."""
    problem: str = ""
    """Why it cannot be served; empty if it can."""
    field: str = ""
    """The field or tensor of the checkpoint that `problem` is about; empty for any other problem."""

    @classmethod
    def of(cls, spec: WorkerSpec) -> "Servable":
        """Read the description of the checkpoint and the headers of its weight files, as a load does first. The memory
        that a load needs is not checked."""
        try:
            backend = choose_backend(spec)
            path, config = open_checkpoint(spec)
            check_readable(backend, path, config)
            ServedTasks.of(path, config)  # for a pooling that is not supported
            options = options_of(spec, backend, config)
        except LoadRefused as error:
            return cls(problem=str(error), field=error.field if isinstance(error, CheckpointError) else "")
        text = has_tokenizer(Path(path))
        return cls(backend, config.family, options.context, text, isinstance(config, LoneConfig))
