"""The consumers: `push`, `orderly` and `pull`. Push and orderly share the modules here; all of them use `reader`."""
