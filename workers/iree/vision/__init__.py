"""Vision towers on IREE: their parameters as graphs take them, the graphs, and the computation of an image."""
