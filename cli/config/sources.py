"""Loads the settings. Flags take precedence over BATON_* variables, which take precedence over a TOML file."""

import difflib
import functools
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from cli.config import allowed_values
from cli.config.model_settings import ModelSettings
from cli.config.settings import ENV_PREFIX, Settings, flag

DEFAULT_FILE = Path("baton.toml")
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
SECRETS = ("api_key", "admin_key", "join_token", "redis_url")
"""Settings whose values are never shown."""


class InvalidSettings(Exception):
    """Raised if a setting is unknown or out of range. The message names the flag, the variable or the file."""


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Load the settings from flags that are not None, the environment and a TOML file. Raises `InvalidSettings`."""
    given = {name: value for name, value in flags.items() if value is not None}
    file = config_file(config)

    try:
        settings = _read_from(file)(**given)
        sources = {name: _source(name, given, file) for name in settings.model_fields_set}
        _check_homes(settings, sources)
        return settings.from_sources(sources)
    except ValidationError as error:
        raise InvalidSettings("\n".join(dict.fromkeys(_explain(error, given, file)))) from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{file} is not TOML: byte {error.start + 1} is not UTF-8") from error
    except ValueError as error:  # `tomllib.TOMLDecodeError`, or a number of more digits than Python reads
        problem = error if isinstance(error, tomllib.TOMLDecodeError) else "it has a number of too many digits"
        raise InvalidSettings(f"{file} is not TOML: {problem}") from error
    except RecursionError as error:
        raise InvalidSettings(f"{file} is nested too deeply") from error
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def _read_from(file: Path | None) -> type[Settings]:
    """Make the settings that also come from a TOML file, which is read anew for each instance. pydantic takes 8 ms to
    make such a class."""

    class Loaded(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    return Loaded


def config_file(config: Path | None) -> Path | None:
    """Return the file to read: `--config`, `BATON_CONFIG`, or baton.toml in the current directory, if it exists."""
    variable = os.environ.get(CONFIG_VARIABLE)
    named = config or (Path(variable) if variable else None)
    if named is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if not named.is_file():
        raise InvalidSettings(f"{'--config' if config else CONFIG_VARIABLE}: there is no file {named}")
    return named


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return a warning for each BATON_* variable that is not a setting. Orchestrators may set such variables."""
    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields] + [CONFIG_VARIABLE]
    return [
        f"{name} is not a setting{_did_you_mean(name, known, ENV_PREFIX)}; it is ignored"
        for name in sorted(environment)
        if name.startswith(ENV_PREFIX) and name not in known
    ]


def _check_homes(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raises `InvalidSettings` for a file or a folder of a user, `~NAME/...`, who does not exist."""
    for name, source in sources.items():
        extra = Settings.model_fields[name].json_schema_extra
        if not isinstance(extra, dict) or extra["metavar"] not in ("FILE", "DIR"):
            continue
        value = getattr(settings, name)
        for path in value if isinstance(value, tuple) else (value,):
            try:
                Path(path).expanduser()
            except RuntimeError as error:
                text = "there is no such user, or it has no home directory"
                raise InvalidSettings(f"{source}: {path}: {text}") from error


def _explain(error: ValidationError, given: Mapping[str, Any], file: Path | None) -> Iterable[str]:
    for problem in error.errors():
        name = str(problem["loc"][0])
        if name == "models" and (inner := _inner(problem["loc"])):
            yield _explain_model(inner, problem["type"], problem["input"], _source(name, given, file))
            continue
        if problem["type"] == "extra_forbidden":
            yield f"{file}: {name} is not a setting{_did_you_mean(name, Settings.model_fields)}"
            continue
        where = _source(name, given, file)
        yield f"{where}: must be {_allowed(name, problem['type'])}{_instead(name, problem['input'])}"


def _inner(location: tuple[int | str, ...]) -> tuple[int, str] | None:
    """The number of a model and the name of its setting, if an error is about one."""
    match location:
        case (_, int(number), str(field), *_):
            return number, field
    return None


def _explain_model(inner: tuple[int, str], kind: str, value: Any, where: str) -> str:
    number, name = inner
    at = f"{where}[{number}].{name}"
    field = ModelSettings.model_fields.get(name)
    if field is None or kind == "extra_forbidden":
        return f"{at} is not a setting of a model{_did_you_mean(name, ModelSettings.model_fields)}"
    return f"{at}: must be {allowed_values.of_setting(field)}, not {allowed_values.shown(value)}"


def _source(name: str, given: Mapping[str, Any], file: Path | None) -> str:
    """Return the flag, the variable or the line of the file that set a setting."""
    if name in given:
        return flag(name)
    variable = ENV_PREFIX + name.upper()
    return variable if variable in {key.upper() for key in os.environ} else f"{file}: {name}"


def _allowed(name: str, kind: str) -> str:
    return "UTF-8" if kind == "string_unicode" else allowed_values.of_setting(Settings.model_fields[name])


def _instead(name: str, value: Any) -> str:
    return "; the given value is a key and is not shown" if name in SECRETS else f", not {allowed_values.shown(value)}"


def _did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggest the most similar known name, if there is one. Names are compared without their common `prefix`."""
    close = difflib.get_close_matches(name.removeprefix(prefix), [each.removeprefix(prefix) for each in known], n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
