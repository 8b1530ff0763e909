"""HTTP/1.1 and HTTP/2 connections: Hypercorn's, with the bounds that it lacks."""
