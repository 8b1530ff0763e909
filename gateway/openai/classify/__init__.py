"""`/v1/classify`: the probabilities of the labels of a text."""
