"""Runs under faults on three real brokers, written down as histories.

`run` is the course: start everything, do faults by three hands at the same time, drain, dump. `stage` owns brokers and
processes, `program` is what the processes do, `dump` reads the topics at the end.
"""
