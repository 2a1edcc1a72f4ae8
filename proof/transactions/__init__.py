"""Runs with transactions: producers that die at each point of one, and what comes of it."""
