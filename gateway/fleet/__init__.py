"""The workers of a gateway as a whole: start, operations, rolling restart, remote join, hand-over."""
