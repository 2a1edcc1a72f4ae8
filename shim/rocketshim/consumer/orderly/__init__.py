"""Consuming a queue in order, under its lock."""
