"""The jobs: each has pure functions from frames to frames, and a report. `rocketshim_spark.cli` runs them."""
