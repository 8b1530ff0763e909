"""All settings: those of each panel of the help, and how they are read from flags, variables and a file."""

from typing import Any

from pydantic import PrivateAttr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from cli.config.model_settings import from_text
from cli.config.panels.engine import EngineSettings
from cli.config.panels.field import PANELS
from cli.config.panels.joining import JoiningSettings, PlacementSettings
from cli.config.panels.limits import LimitSettings
from cli.config.panels.lora import LoraSettings
from cli.config.panels.model import ServedModelSettings
from cli.config.panels.server import ServerSettings

ENV_PREFIX = "BATON_"
VLLM_FLAGS = ("lora_modules",)
"""Lists whose flag has the name that vLLM gives it."""


class Settings(
    PlacementSettings,
    JoiningSettings,
    LimitSettings,
    ServerSettings,
    EngineSettings,
    ServedModelSettings,
    LoraSettings,
    BaseSettings,
):
    """The settings. `max_batch_size` is set by `--max-batch-size`, `BATON_MAX_BATCH_SIZE` or `max_batch_size = 8`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def sources(self) -> dict[str, str]:
        """The flag, variable or line of a file that set each setting, without those at their defaults."""
        return self._sources

    def from_sources(self, sources: dict[str, str]) -> "Settings":
        """Remember what set the settings. Returns them."""
        self._sources = sources
        return self

    @field_validator(
        "allowed_hosts",
        "allow_image_urls",
        "cors_origins",
        "trusted_gateways",
        "key_weights",
        "join",
        "server_key",
        "lora_modules",
        "lora_dirs",
        "allow_lora_repos",
        mode="before",
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take a list as a variable or a line has it: entries are separated by commas."""
        return [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value

    @field_validator("models", mode="before")
    @classmethod
    def _parse_models(cls, value: Any) -> Any:
        """Take `NAME=MODEL` for a table. In a variable, entries are separated by commas."""
        given = cls._split(value)
        if not isinstance(given, list):
            return given
        return [from_text(each) if isinstance(each, str) else each for each in given]

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false as numbers."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in (int, float):
            raise ValueError("a number is needed")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags, environment, file. Dotenv files and secrets directories are not read."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def of_panels(*panels: str) -> tuple[str, ...]:
    """Return the names of the settings under these headings, in the order of `PANELS`."""
    found: dict[str, list[str]] = {panel: [] for panel in PANELS}
    for name, field in Settings.model_fields.items():
        if isinstance(field.json_schema_extra, dict):
            found[str(field.json_schema_extra["panel"])].append(name)
    return tuple(name for panel in PANELS if panel in panels for name in found[panel])


def flag(name: str) -> str:
    """Return the flag of a setting. Each use of the flag of a list adds one entry, so its name is in the singular,
    unless vLLM has it in the plural."""
    field = Settings.model_fields.get(name)
    if field is not None and isinstance(field.default, tuple) and name not in VLLM_FLAGS:
        name = name.removesuffix("s")
    return "--" + name.replace("_", "-")
