"""Opens the store that the settings name."""

from gateway.responses.store.memory import MemoryStore
from gateway.responses.store.sqlite import SqliteStore
from gateway.responses.store.stored import ResponseStore
from gateway.settings import GatewaySettings


def open_store(settings: GatewaySettings) -> ResponseStore | None:
    """The store of responses; None if none are kept. Raises `StoreUnavailable`."""
    most, most_bytes = settings.max_stored_responses, settings.max_stored_bytes
    if settings.store_path:
        return SqliteStore(settings.store_path, most, most_bytes)
    return MemoryStore(most, most_bytes) if settings.store == "memory" else None
