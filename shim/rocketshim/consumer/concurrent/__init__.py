"""The concurrent consumer: chunks of a partition are consumed by many threads or coroutines at the same time."""
