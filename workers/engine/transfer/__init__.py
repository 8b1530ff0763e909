"""Cache rows that go from one worker to another."""
