"""Other engines that Baton is measured beside, and the files that they read."""
