"""Blocks of layers that few families have, made of the operations of a device."""
