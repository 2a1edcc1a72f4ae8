"""Named timers on a real broker, judged by their log: set, cancelled, replaced, fired, and workers that are killed."""
