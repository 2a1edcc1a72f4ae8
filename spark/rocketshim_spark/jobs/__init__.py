"""The jobs: each a pure `transform(events, params)` and a verdict for a person. `rocketshim_spark.cli` runs them."""
