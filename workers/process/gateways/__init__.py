"""The gateways of a remote worker: the links to them, and the share that each has of the worker."""
