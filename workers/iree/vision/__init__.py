"""The computation of images by a vision tower on a device."""
