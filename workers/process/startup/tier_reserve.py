"""The memory that the prefix tier may still take."""

from workers.prefix_store.directory import MEMORY, default_directory, unused_bytes


def tier_reserve(max_bytes: int, directory: str) -> int:
    """Return the bytes of memory by which a prefix tier may still grow; 0 if it is in a named directory, as on disk."""
    path = default_directory()
    return 0 if not max_bytes or directory or path.parent != MEMORY else unused_bytes(path, max_bytes)
