"""Runs of the real shells in one thread, on a Kafka in memory and a virtual clock, under faults that a seed chooses.

`plan` makes the steps of a seed. `run` executes them and has the checker judge the history. `shrink` leaves out steps
while the run still fails. `bugs` plants defects, each of which the simulation has to find.
"""
