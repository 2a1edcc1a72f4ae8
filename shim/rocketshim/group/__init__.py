"""The group log of a consumer group: the thread that reads and writes it for one member."""
