"""The TCP listener through which workers of other machines join, and the bounds on peers not yet authenticated."""
