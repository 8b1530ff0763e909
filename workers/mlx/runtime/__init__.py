"""Parts that all runners on MLX share: the device and its thread, the sampler, and adapters."""
