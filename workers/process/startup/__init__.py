"""The startup of a worker: its description and its context, before the model is loaded."""
