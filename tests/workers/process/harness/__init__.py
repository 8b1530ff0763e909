"""The gateway's end of a link, and a worker that the test steps."""
