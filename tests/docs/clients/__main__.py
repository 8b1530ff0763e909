"""Writes the table into the page."""

from tests.docs.clients.table import write

write()
