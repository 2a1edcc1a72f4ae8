"""Dead letters, for the person on call: see them, follow a message through its life, send them again.

`reading` reads topics from an offset or a time to their end; `entry` is one record, decoded as far as it can be;
`statistics` counts them by cause; `trace` puts the records of one message in order and says what is missing.
"""
