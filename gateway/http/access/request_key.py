"""The API key of a request, as the middleware has noted it."""

from collections.abc import Callable, Iterable

from starlette.types import Scope

from gateway.keys.api_keys import ApiKey


def request_key(scope: Scope) -> ApiKey | None:
    """The accepted key of a request; None without one."""
    found: ApiKey | None = scope.get("baton.key")
    return found


def models_for(key: ApiKey | None, names: Iterable[str], aliases: Callable[[str], Iterable[str]]) -> list[str]:
    """Those of the models that a client with this key may use: by their own name, or by one of their aliases."""
    if key is None:
        return list(names)
    return [name for name in names if any(map(key.limits.allows, (name, *aliases(name))))]
