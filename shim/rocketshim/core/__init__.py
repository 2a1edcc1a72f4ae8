"""The pure core: state machines without I/O, clock, threads or logs.

Time is an argument (`now_ms`), randomness too. Inputs are facts, outputs are values or frozen actions; an illegal
input raises and changes nothing. A core object belongs to one thread and so needs no lock.
"""
