"""Settings, the command-line options made from them, and the model and the workers that they describe."""
