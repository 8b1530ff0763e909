"""The gateway's end of a link."""
