"""Tiny multimodal checkpoints, in the form in which their families are published."""

from tests.vision_checkpoints.checkpoints import make_vision_checkpoint, make_vision_description
from tests.vision_checkpoints.families import VISION_FAMILIES

__all__ = ["VISION_FAMILIES", "make_vision_checkpoint", "make_vision_description"]
