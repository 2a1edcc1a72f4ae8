"""The console in the browser: what waits, retries, is dead and why; and sending dead letters again after a review.

`server_app.make_app` assembles it. `guard` decides for every request whether it is let in; `people` knows who may log
in. Each page subject has one module. A page handler runs in a thread of its own, opens its Kafka clients itself, reads
within limits of bytes and time, and closes them. A GET only reads.

Nothing but the command line (`rocketshim.cli.console`) imports this package.
"""
