"""Shell of sending: the producer and queue selectors."""
