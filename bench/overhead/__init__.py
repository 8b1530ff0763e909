"""Overhead beside the model: the scheduler, a whole worker process, and the detection of a lost one."""
