"""The orderly consumer: consumes a queue in order, under its lock."""
