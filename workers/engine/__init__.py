"""The engine, without a device: scheduler, sequences, KV slots, prefix matching, token budget."""
