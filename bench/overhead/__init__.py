"""What Baton costs beside the model: the scheduler, and a whole worker process."""
