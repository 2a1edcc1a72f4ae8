"""The commands of this package: `rocketshim broker` and `rocketshim demo`."""
