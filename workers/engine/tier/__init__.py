"""The tier of cached rows apart from the slots."""
