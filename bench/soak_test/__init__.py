"""The parts of a soak test: requests, fault plan, samples, and verdicts on answers and on the server."""
