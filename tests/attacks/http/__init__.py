"""Attacks on connections: HTTP/1.1 and HTTP/2 as bytes on a socket."""
