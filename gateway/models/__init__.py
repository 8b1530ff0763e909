"""The models of one server: which are loaded, within a memory budget, and when they are unloaded."""
