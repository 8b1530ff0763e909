"""The preprocessing of images, one module for each kind: sizes, tiles, and the text that stands for an image."""
