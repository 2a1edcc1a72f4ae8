"""The locks of queues: the fold of a group's log, what one member may believe, and its thread over the log."""
