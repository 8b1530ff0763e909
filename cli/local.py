"""A model in this process: the same engine as in a worker, with a batch of one."""
