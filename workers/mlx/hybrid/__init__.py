"""Hybrid models in the batched runner: layers with recurrent state beside attention."""
