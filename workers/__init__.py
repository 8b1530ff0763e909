"""The processes that compute: one scheduler, text, and the runners that know a device each."""
