"""Reports why the other tests of this folder are missing when the backend is not installed."""

import pytest


def test_the_backend_is_installed() -> None:
    pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")
