"""Routing by prefix: which worker holds what a prompt begins with, and whether going there pays."""
