"""The group log of a consumer group: the thread that reads and writes it, and the leases and events it publishes."""
