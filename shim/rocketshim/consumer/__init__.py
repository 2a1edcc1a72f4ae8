"""What push and orderly consumers share; `reader` serves every consumer, `push`, `orderly`, `pull` are the kinds."""
