"""Vision towers in GGUF files of their own, which llama.cpp calls `mmproj`, beside a language model in GGUF files."""
