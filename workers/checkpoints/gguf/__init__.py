"""Checkpoints in GGUF files, the format of llama.cpp and Ollama."""
