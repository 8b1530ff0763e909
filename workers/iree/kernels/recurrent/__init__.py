"""Layers with a recurrent state: short convolutions and gated delta networks, row after row."""
