"""What programs import from `rocketshim` is there, and stays there."""

import subprocess
import sys

import pytest

import rocketshim

PINNED = [
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
    "ConsumerCollector",
    "DeadLetter",
    "DelayLevels",
    "DelayWorker",
    "ExponentialRetryPolicy",
    "FilterMessageHook",
    "LevelTableRetryPolicy",
    "LitePullConsumer",
    "LitePullConsumerSettings",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "MessageView",
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
    "WorkerSettings",
    "decode",
    "encode",
]  # given away once: a name may be added here, never taken out


@pytest.mark.parametrize("name", PINNED)
def test_a_public_name_resolves(name: str) -> None:
    assert getattr(rocketshim, name) is not None
    assert name in dir(rocketshim)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        rocketshim.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "module", ["rocketshim", "rocketshim.filters", "rocketshim.core.level_queue", "rocketshim_topics"]
)
def test_importing_it_loads_no_kafka_client(module: str) -> None:
    program = f"import sys, {module}; sys.exit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603
