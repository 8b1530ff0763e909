"""Overhead beside the model: the scheduler, and a whole worker process."""
