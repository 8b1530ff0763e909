"""What all runners on MLX share: the device and its thread, and the sampler."""
