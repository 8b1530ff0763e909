"""Reports whether a worker could serve a checkpoint, without loading it."""

from dataclasses import dataclass
from pathlib import Path

from workers.checkpoints.documents import has_tokenizer
from workers.errors import LoadRefused
from workers.process.backends import choose_backend, open_checkpoint, options_of
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
    problem: str = ""
    """Why it cannot be served; empty if it can."""

    @classmethod
    def of(cls, spec: WorkerSpec) -> "Servable":
        """Read the description of the checkpoint and the headers of its weight files, as a load does first. The memory
        that a load needs is not checked."""
        try:
            backend = choose_backend(spec)
            path, config = open_checkpoint(spec)
            options = options_of(spec, backend, config)
        except LoadRefused as error:
            return cls(problem=str(error))
        text = has_tokenizer(Path(path))
        return cls(backend, config.family, options.context, text)
