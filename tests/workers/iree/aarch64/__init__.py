"""Kernels and models for AArch64: compiled on any machine, and run by QEMU's user-mode emulation."""
