"""The commands of this package: `rocketshim broker`, `rocketshim demo` and `rocketshim dev`."""
