"""The project's proof: histories of runs in which things go wrong, and the checker that judges them.

`lines` is the format, `writer` and `reader` its two ends, `check` the properties, `report` what a person reads. See
README.md. Nothing here is part of the packages that are installed.
"""
