"""Text in the worker: tokenizer, chat template, incremental detokenization, stop strings."""
