"""Grammars of answers, on llguidance: compiled off the engine thread, matched token by token."""
