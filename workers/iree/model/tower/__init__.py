"""A vision tower as graphs compute it: its parameters, its attention and its parts."""
