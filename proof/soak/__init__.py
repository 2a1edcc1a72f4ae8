"""A mixed load for hours, to see that memory, threads, sockets and file handles do not grow."""
