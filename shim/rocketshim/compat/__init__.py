"""The shapes of other clients over ours: `rocketshim.compat.rocketmq`."""
