"""rocketshim: RocketMQ's consumption semantics on plain Apache Kafka, from the client side.

Everything a program needs is imported from here. Names are resolved when they are first used, so that
`import rocketshim` is quick and `rocketshim.filters` loads no Kafka client.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocketshim.consumer.hooks import ConsumeMessageContext as ConsumeMessageContext
    from rocketshim.consumer.hooks import ConsumeMessageHook as ConsumeMessageHook
    from rocketshim.consumer.hooks import FilterMessageHook as FilterMessageHook
    from rocketshim.consumer.lite_pull_consumer import LitePullConsumer as LitePullConsumer
    from rocketshim.consumer.orderly_context import ConsumeOrderlyContext as ConsumeOrderlyContext
    from rocketshim.consumer.outcome import ConsumeConcurrentlyContext as ConsumeConcurrentlyContext
    from rocketshim.consumer.outcome import DeadLetter as DeadLetter
    from rocketshim.consumer.outcome import RetryLater as RetryLater
    from rocketshim.consumer.prometheus import ConsumerCollector as ConsumerCollector
    from rocketshim.consumer.pull_consumer import PullConsumer as PullConsumer
    from rocketshim.consumer.pull_consumer import PullResult as PullResult
    from rocketshim.consumer.pull_consumer import PullStatus as PullStatus
    from rocketshim.consumer.push_consumer import PushConsumer as PushConsumer
    from rocketshim.core.allocate import AllocateMachineRoomNearby as AllocateMachineRoomNearby
    from rocketshim.core.allocate import AllocateMessageQueueAveragely as AllocateMessageQueueAveragely
    from rocketshim.core.allocate import AllocateMessageQueueAveragelyByCircle as AllocateMessageQueueAveragelyByCircle
    from rocketshim.core.allocate import AllocateMessageQueueByConfig as AllocateMessageQueueByConfig
    from rocketshim.core.allocate import AllocateMessageQueueByMachineRoom as AllocateMessageQueueByMachineRoom
    from rocketshim.core.allocate import AllocateMessageQueueConsistentHash as AllocateMessageQueueConsistentHash
    from rocketshim.core.consume_concurrently import ConsumeReturnType as ConsumeReturnType
    from rocketshim.core.consume_concurrently import ConsumeStatus as ConsumeStatus
    from rocketshim.core.consume_orderly import ConsumeOrderlyStatus as ConsumeOrderlyStatus
    from rocketshim.core.message_model import MessageModel as MessageModel
    from rocketshim.core.retry_policy import AfterDelay as AfterDelay
    from rocketshim.core.retry_policy import AtLevel as AtLevel
    from rocketshim.core.retry_policy import ExponentialRetryPolicy as ExponentialRetryPolicy
    from rocketshim.core.retry_policy import LevelTableRetryPolicy as LevelTableRetryPolicy
    from rocketshim.core.retry_policy import RetryPolicy as RetryPolicy
    from rocketshim.core.start_position import ConsumeFromWhere as ConsumeFromWhere
    from rocketshim.filters import MessageSelector as MessageSelector
    from rocketshim.producer.producer import Producer as Producer
    from rocketshim.producer.producer import SendResult as SendResult
    from rocketshim.producer.producer import SendStatus as SendStatus
    from rocketshim.settings import LitePullConsumerSettings as LitePullConsumerSettings
    from rocketshim.settings import ProducerSettings as ProducerSettings
    from rocketshim.settings import PullConsumerSettings as PullConsumerSettings
    from rocketshim.settings import PushConsumerSettings as PushConsumerSettings
    from rocketshim.settings import WorkerSettings as WorkerSettings
    from rocketshim.worker.worker import DelayWorker as DelayWorker
    from rocketshim_topics import (
        DelayLevels as DelayLevels,
    )
    from rocketshim_topics import (
        Message as Message,
    )
    from rocketshim_topics import (
        MessageView as MessageView,
    )
    from rocketshim_topics import (
        Origin as Origin,
    )
    from rocketshim_topics import (
        TopicNames as TopicNames,
    )
    from rocketshim_topics import (
        decode as decode,
    )
    from rocketshim_topics import (
        encode as encode,
    )
    from rocketshim_topics.message_queue import MessageQueue as MessageQueue

_HOME = {
    "AfterDelay": "rocketshim.core.retry_policy",
    "AllocateMachineRoomNearby": "rocketshim.core.allocate",
    "AllocateMessageQueueAveragely": "rocketshim.core.allocate",
    "AllocateMessageQueueAveragelyByCircle": "rocketshim.core.allocate",
    "AllocateMessageQueueByConfig": "rocketshim.core.allocate",
    "AllocateMessageQueueByMachineRoom": "rocketshim.core.allocate",
    "AllocateMessageQueueConsistentHash": "rocketshim.core.allocate",
    "AtLevel": "rocketshim.core.retry_policy",
    "ConsumeConcurrentlyContext": "rocketshim.consumer.outcome",
    "ConsumeFromWhere": "rocketshim.core.start_position",
    "ConsumeMessageContext": "rocketshim.consumer.hooks",
    "ConsumeMessageHook": "rocketshim.consumer.hooks",
    "ConsumeOrderlyContext": "rocketshim.consumer.orderly_context",
    "ConsumeOrderlyStatus": "rocketshim.core.consume_orderly",
    "ConsumeReturnType": "rocketshim.core.consume_concurrently",
    "ConsumeStatus": "rocketshim.core.consume_concurrently",
    "ConsumerCollector": "rocketshim.consumer.prometheus",
    "DeadLetter": "rocketshim.consumer.outcome",
    "DelayWorker": "rocketshim.worker.worker",
    "ExponentialRetryPolicy": "rocketshim.core.retry_policy",
    "FilterMessageHook": "rocketshim.consumer.hooks",
    "LevelTableRetryPolicy": "rocketshim.core.retry_policy",
    "LitePullConsumer": "rocketshim.consumer.lite_pull_consumer",
    "LitePullConsumerSettings": "rocketshim.settings",
    "MessageModel": "rocketshim.core.message_model",
    "MessageQueue": "rocketshim_topics.message_queue",
    "MessageSelector": "rocketshim.filters",
    "Producer": "rocketshim.producer.producer",
    "ProducerSettings": "rocketshim.settings",
    "PullConsumer": "rocketshim.consumer.pull_consumer",
    "PullConsumerSettings": "rocketshim.settings",
    "PullResult": "rocketshim.consumer.pull_consumer",
    "PullStatus": "rocketshim.consumer.pull_consumer",
    "PushConsumer": "rocketshim.consumer.push_consumer",
    "PushConsumerSettings": "rocketshim.settings",
    "RetryLater": "rocketshim.consumer.outcome",
    "RetryPolicy": "rocketshim.core.retry_policy",
    "SendResult": "rocketshim.producer.producer",
    "SendStatus": "rocketshim.producer.producer",
    "WorkerSettings": "rocketshim.settings",
}
"""Public name to the module it is made in; what is not here is looked for in `rocketshim_topics`."""


def __getattr__(name: str) -> Any:
    """Resolve a public name at its first use."""
    home = _HOME.get(name)
    if home is None:
        contract = importlib.import_module("rocketshim_topics")
        if name not in contract.__all__:
            raise AttributeError(f"module 'rocketshim' has no attribute {name!r}")
        value = getattr(contract, name)
    else:
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name."""
    return sorted({*_HOME, *importlib.import_module("rocketshim_topics").__all__})
