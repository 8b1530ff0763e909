"""HTTP in processes of their own, which relay requests to the one that routes them."""
