"""Images in the engine, on the scripted runner."""
