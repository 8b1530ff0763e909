"""Fault injection under load: breaks the workers of a server and checks what the clients of its streams receive."""
