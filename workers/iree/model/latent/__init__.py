"""The operations of latent attention, for CPUs and for other devices."""
