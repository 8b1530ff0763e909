"""The models of a server with several: their workers and memory, and those that are downloaded when they are needed."""
