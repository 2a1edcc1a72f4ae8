"""Shells of consuming: poll loop, listener threads, commits, push and pull consumers."""
