"""Filters select the messages of a topic that a consumer group consumes.

There are three kinds. A subscription has one of them::

    TagFilter("created || paid")                        by the tag of the message
    SqlFilter("price > 10 AND region = 'EU'")           by an SQL92 condition on its properties, as in RocketMQ 5.3
    CallableFilter(function_or_object_with_matches)     by the program's own code, which gets the whole message

`compile_filter(tags=…, sql=…, selector=…)` creates one from the arguments of a subscription. Each filter has `matches`,
`expression`, `expression_type` and `digest()`. Tag and SQL filters also have `matches_headers`, which takes the headers
as the Kafka client returns them and decodes only what it needs.

Everything here is pure: no Kafka client is loaded, and no clock, thread or log is used.
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
