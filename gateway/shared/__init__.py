"""State that several gateways share through Redis: leases on shares of the limits of API keys, and what clients
were served."""
