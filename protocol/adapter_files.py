"""The files of an adapter, of which `LoadAdapter.digest` is made."""

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapters.safetensors")
"""The description of an adapter, and its weights in the layout of PEFT or of mlx-lm."""
DIGEST_BYTES = 16
"""Bytes of the digest of these files."""
