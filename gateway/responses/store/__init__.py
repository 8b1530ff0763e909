"""The store of responses, in memory or in an SQLite file."""
