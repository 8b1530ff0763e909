"""Wire protocol between the gateway and its workers: typed frames, their bounds, and the codec. Imports msgspec
only."""
