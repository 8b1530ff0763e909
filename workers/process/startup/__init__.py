"""What a worker decides and states before it loads its model."""
