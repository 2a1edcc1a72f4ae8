"""The producer and its queue selectors."""
