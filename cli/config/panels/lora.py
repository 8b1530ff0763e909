"""The settings of LoRA adapters that requests choose."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel
from pydantic_settings import NoDecode

from cli.config.errors import CommandFailed
from cli.config.panels.field import ENGINE, GATEWAY, setting
from protocol.bounds import MAX_ADAPTERS, MAX_NAME
from workers.errors import LoadRefused
from workers.hub.adapter import resolve_adapter
from workers.load_options import MAX_LORA_RANK

MAX_LORAS, MAX_RANK = 8, 64
"""The defaults of the bounds."""


class LoraSettings(BaseModel):
    """The adapters of a model, which requests name in place of the model."""

    lora_modules: Annotated[tuple[str, ...], NoDecode] = setting(
        (),
        ENGINE,
        "LoRA adapter that requests may name as their model: its name and its directory, of PEFT or mlx-lm, or its "
        "name on the hub. Repeatable.",
        "NAME=DIR",
        f"a list of at most {MAX_ADAPTERS} texts NAME=DIR",
        max_length=MAX_ADAPTERS,
    )
    lora_dirs: Annotated[tuple[str, ...], NoDecode] = setting(
        GATEWAY.lora_dirs,
        ENGINE,
        "Folder below which requests may load LoRA adapters while the server runs; without it, they may load none. "
        "Repeatable.",
        "DIR",
    )
    allow_lora_repos: Annotated[tuple[str, ...], NoDecode] = setting(
        GATEWAY.allow_lora_repos,
        ENGINE,
        "Repository of the hub from which requests may load LoRA adapters while the server runs: ORG/NAME, ORG/*, or * "
        "for any. Repeatable.",
        "REPO",
    )
    lora_state_dir: str = setting(
        GATEWAY.lora_state_dir,
        ENGINE,
        "Folder in which the adapters that requests have loaded are kept for the next start; without it, they are "
        "forgotten when the server ends.",
        "DIR",
    )
    max_loras: int = setting(
        MAX_LORAS,
        ENGINE,
        "Maximum number of adapters of a model; all of them may be in one step.",
        ge=1,
        le=MAX_ADAPTERS,
    )
    max_lora_rank: int = setting(
        MAX_RANK, ENGINE, "Maximum rank of an adapter that requests name.", ge=1, le=MAX_LORA_RANK
    )


def named_adapters(modules: Sequence[str]) -> dict[str, str]:
    """Return the directories or hub ids of adapters by their names. Raises `CommandFailed` for a text of another form
    and for a name twice."""
    found: dict[str, str] = {}
    for text in modules:
        name, _, path = text.partition("=")
        if not name or not path:
            raise CommandFailed(f"lora_modules: {text!r} is not NAME=DIR")
        if len(name) > MAX_NAME or not name.isprintable():
            raise CommandFailed(f"lora_modules: {name[:MAX_NAME]!r} is no name: give up to {MAX_NAME} characters")
        if name in found:
            raise CommandFailed(f"lora_modules: there are two adapters {name!r}: give each a name of its own")
        found[name] = path
    return found


def adapter_directories(modules: Sequence[str]) -> dict[str, str]:
    """Return the directories of adapters by their names, those of the hub after a download of what the cache lacks.
    Raises `CommandFailed`."""
    found: dict[str, str] = {}
    for name, path in named_adapters(modules).items():
        try:
            found[name] = str(resolve_adapter(path))
        except (LoadRefused, OSError, RuntimeError) as error:  # the latter of ~NAME
            text = f"lora_modules: {name}: there is no directory {path!r}, and it cannot be had from the hub: {error}"
            raise CommandFailed(text) from error
    return found
