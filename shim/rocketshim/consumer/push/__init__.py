"""The push consumer: the class that users see, its hooks, and what puts its parts together."""
