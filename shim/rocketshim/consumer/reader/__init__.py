"""Reading partitions, for every consumer: start offsets, pauses, commits, who reads what."""
