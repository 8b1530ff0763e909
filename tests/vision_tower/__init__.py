"""The vision tower that the backends are compared with."""

from tests.vision_tower.numpy_tower import NumpyTower, rotate

__all__ = ["NumpyTower", "rotate"]
