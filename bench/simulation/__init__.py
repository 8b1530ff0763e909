"""A discrete-event simulation of gateways with many workers: the gateway's own code on a virtual clock."""
