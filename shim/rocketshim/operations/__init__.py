"""What those who run it ask: where a group stands, whether the set-up is sound, which rights a role needs.

Nothing here changes anything on a cluster.
"""
