"""Attacks by what surrounds the program: full disks, other users, suspended processes, clocks."""
