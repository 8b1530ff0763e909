"""The files of LoRA adapters that requests choose, and the matrices of a model that they are applied to."""
