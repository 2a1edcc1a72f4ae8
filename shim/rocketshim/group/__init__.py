"""The shells over a group's log: one thread that reads and writes it, and what others get to see."""
