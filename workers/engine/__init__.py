"""The engine above the runners: scheduler, sequences, KV slots, prefix matching, token budget. No device."""
