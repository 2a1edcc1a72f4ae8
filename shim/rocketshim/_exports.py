"""The public names of `rocketshim`: where each is defined, so that it loads what it needs and nothing else.

Type checkers read the imports, a program the table; a test compares the two.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocketshim.client_metrics import MetricsCollector
    from rocketshim.consumer.pull.lite_pull_consumer import LitePullConsumer
    from rocketshim.consumer.pull.pull_consumer import PullConsumer, PullResult, PullStatus
    from rocketshim.consumer.push.hooks import ConsumeMessageContext, ConsumeMessageHook, FilterMessageHook
    from rocketshim.consumer.push.push_consumer import PushConsumer
    from rocketshim.core.allocate import (
        AllocateMachineRoomNearby,
        AllocateMessageQueueAveragely,
        AllocateMessageQueueAveragelyByCircle,
        AllocateMessageQueueByConfig,
        AllocateMessageQueueByMachineRoom,
        AllocateMessageQueueConsistentHash,
    )
    from rocketshim.core.listener_answers import (
        ConsumeConcurrentlyContext,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        ConsumeReturnType,
        ConsumeStatus,
        DeadLetter,
        RetryLater,
    )
    from rocketshim.core.message_model import MessageModel
    from rocketshim.core.retry_policy import (
        AfterDelay,
        AtLevel,
        ExponentialRetryPolicy,
        LevelTableRetryPolicy,
        RetryPolicy,
    )
    from rocketshim.core.start_position import ConsumeFromWhere
    from rocketshim.filters import MessageSelector
    from rocketshim.producer.producer import Producer
    from rocketshim.producer.result import SendResult, SendStatus
    from rocketshim.settings.consumer import LitePullConsumerSettings, PullConsumerSettings, PushConsumerSettings
    from rocketshim.settings.producer import ProducerSettings
    from rocketshim.settings.worker import WorkerSettings
    from rocketshim.worker.worker import DelayWorker
    from rocketshim_topics.layout import Layout, TopicSpec
    from rocketshim_topics.levels import DelayLevels
    from rocketshim_topics.message import Message, MessageView, Origin
    from rocketshim_topics.message_queue import MessageQueue
    from rocketshim_topics.names import TopicNames
    from rocketshim_topics.provision import ensure_topics
    from rocketshim_topics.wire import decode, encode

HOMES: Final = {
    "AfterDelay": "rocketshim.core.retry_policy",
    "AllocateMachineRoomNearby": "rocketshim.core.allocate",
    "AllocateMessageQueueAveragely": "rocketshim.core.allocate",
    "AllocateMessageQueueAveragelyByCircle": "rocketshim.core.allocate",
    "AllocateMessageQueueByConfig": "rocketshim.core.allocate",
    "AllocateMessageQueueByMachineRoom": "rocketshim.core.allocate",
    "AllocateMessageQueueConsistentHash": "rocketshim.core.allocate",
    "AtLevel": "rocketshim.core.retry_policy",
    "ConsumeConcurrentlyContext": "rocketshim.core.listener_answers",
    "ConsumeFromWhere": "rocketshim.core.start_position",
    "ConsumeMessageContext": "rocketshim.consumer.push.hooks",
    "ConsumeMessageHook": "rocketshim.consumer.push.hooks",
    "ConsumeOrderlyContext": "rocketshim.core.listener_answers",
    "ConsumeOrderlyStatus": "rocketshim.core.listener_answers",
    "ConsumeReturnType": "rocketshim.core.listener_answers",
    "ConsumeStatus": "rocketshim.core.listener_answers",
    "DeadLetter": "rocketshim.core.listener_answers",
    "DelayLevels": "rocketshim_topics.levels",
    "DelayWorker": "rocketshim.worker.worker",
    "ExponentialRetryPolicy": "rocketshim.core.retry_policy",
    "FilterMessageHook": "rocketshim.consumer.push.hooks",
    "Layout": "rocketshim_topics.layout",
    "LevelTableRetryPolicy": "rocketshim.core.retry_policy",
    "LitePullConsumer": "rocketshim.consumer.pull.lite_pull_consumer",
    "LitePullConsumerSettings": "rocketshim.settings.consumer",
    "Message": "rocketshim_topics.message",
    "MessageModel": "rocketshim.core.message_model",
    "MessageQueue": "rocketshim_topics.message_queue",
    "MessageSelector": "rocketshim.filters",
    "MessageView": "rocketshim_topics.message",
    "MetricsCollector": "rocketshim.client_metrics",
    "Origin": "rocketshim_topics.message",
    "Producer": "rocketshim.producer.producer",
    "ProducerSettings": "rocketshim.settings.producer",
    "PullConsumer": "rocketshim.consumer.pull.pull_consumer",
    "PullConsumerSettings": "rocketshim.settings.consumer",
    "PullResult": "rocketshim.consumer.pull.pull_consumer",
    "PullStatus": "rocketshim.consumer.pull.pull_consumer",
    "PushConsumer": "rocketshim.consumer.push.push_consumer",
    "PushConsumerSettings": "rocketshim.settings.consumer",
    "RetryLater": "rocketshim.core.listener_answers",
    "RetryPolicy": "rocketshim.core.retry_policy",
    "SendResult": "rocketshim.producer.result",
    "SendStatus": "rocketshim.producer.result",
    "TopicNames": "rocketshim_topics.names",
    "TopicSpec": "rocketshim_topics.layout",
    "WorkerSettings": "rocketshim.settings.worker",
    "decode": "rocketshim_topics.wire",
    "encode": "rocketshim_topics.wire",
    "ensure_topics": "rocketshim_topics.provision",
}
"""Public name to the module that defines it."""

__all__ = [
    "AfterDelay",
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AtLevel",
    "ConsumeConcurrentlyContext",
    "ConsumeFromWhere",
    "ConsumeMessageContext",
    "ConsumeMessageHook",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeReturnType",
    "ConsumeStatus",
    "DeadLetter",
    "DelayLevels",
    "DelayWorker",
    "ExponentialRetryPolicy",
    "FilterMessageHook",
    "Layout",
    "LevelTableRetryPolicy",
    "LitePullConsumer",
    "LitePullConsumerSettings",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "MessageView",
    "MetricsCollector",
    "Origin",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerSettings",
    "RetryLater",
    "RetryPolicy",
    "SendResult",
    "SendStatus",
    "TopicNames",
    "TopicSpec",
    "WorkerSettings",
    "decode",
    "encode",
    "ensure_topics",
]
