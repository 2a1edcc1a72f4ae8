"""Consumers that are asked for messages."""
