"""The public names of `rocketshim`, each imported from the module that defines it."""

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
from rocketshim.core.consume_concurrently import (
    ConsumeConcurrentlyContext,
    ConsumeReturnType,
    ConsumeStatus,
    DeadLetter,
    RetryLater,
)
from rocketshim.core.consume_orderly import ConsumeOrderlyContext, ConsumeOrderlyStatus
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
from rocketshim.settings import (
    LitePullConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
    WorkerSettings,
)
from rocketshim.worker.worker import DelayWorker
from rocketshim_topics.layout import Layout, TopicSpec
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message, MessageView, Origin
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import TopicNames
from rocketshim_topics.provision import ensure_topics
from rocketshim_topics.wire import decode, encode

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
