"""What happens on the cluster, as operators see it: `Sampler` and its `Snapshot`s."""
