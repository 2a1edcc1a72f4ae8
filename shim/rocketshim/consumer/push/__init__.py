"""The push consumer: the class users see, its settings, listeners and concurrent loop."""
