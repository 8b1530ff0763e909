"""The parts of a soak: its requests, its plan of faults, and how its visits and its server are judged."""
