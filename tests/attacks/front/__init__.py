"""Attacks on authentication, on hosts and origins, and on the take-over."""
