"""Filters: which messages of a topic a consumer group wants.

Three kinds, one at a time for a subscription::

    TagFilter("created || paid")                        by the message's one tag
    SqlFilter("price > 10 AND region = 'EU'")           by an SQL92 condition on its properties, as RocketMQ 5.3
    CallableFilter(function_or_object_with_matches)     by own code, which sees the whole message

`compile_filter(tags=…, sql=…, selector=…)` makes one from a subscription's arguments. Each filter has `matches`,
`expression`, `expression_type` and `digest()`; tag and SQL filters also `matches_headers`, which works on the headers
as the Kafka client hands them out and decodes no more than it needs.

Everything here is pure: no Kafka client is loaded, no clock, thread or log is used.
"""

from rocketshim.errors import FilterError, FilterEvaluationError, FilterSyntaxError
from rocketshim.filters.selection import CallableFilter, MessageFilter, MessageSelector, compile_filter
from rocketshim.filters.sql import SqlFilter
from rocketshim.filters.tag import TagFilter

__all__ = [
    "CallableFilter",
    "FilterError",
    "FilterEvaluationError",
    "FilterSyntaxError",
    "MessageFilter",
    "MessageSelector",
    "SqlFilter",
    "TagFilter",
    "compile_filter",
]
