"""The classes of commands, and hints about flags that they do not have."""
