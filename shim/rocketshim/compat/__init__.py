"""The APIs of other clients on top of rocketshim: `rocketshim.compat.rocketmq`."""
