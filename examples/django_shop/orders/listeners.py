"""The listeners of this application; Django imports them at its start."""

from django.conf import settings

from orders.models import Order
from rocketshim import MessageView
from rocketshim.contrib.django import listener


@listener(settings.ORDERS_TOPIC, group="payments")
def charge(message: MessageView) -> None:
    """Mark the order as paid; a second delivery changes nothing."""
    Order.objects.filter(number=(message.key or b"").decode()).update(paid=True)
