"""Runs under faults on a real broker, written down as histories.

`run` is the loop: start everything, do one fault of the table (`faults`) after the other, drain, dump, check. `stage`
owns broker and processes, `program` is what the processes do, `dump` reads the topics at the end.
"""
