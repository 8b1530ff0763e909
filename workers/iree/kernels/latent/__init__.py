"""Latent attention: the products with the matrices of each head, and the rows between projections and the cache."""
