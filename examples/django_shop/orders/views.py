"""Requests."""

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from orders.models import Order
from rocketshim import Message
from rocketshim.contrib.django import send_on_commit


@require_POST
def place(_request: HttpRequest, number: str) -> HttpResponse:
    """Store an order, and send its message when it is committed: the listener finds the row."""
    with transaction.atomic():
        Order.objects.create(number=number)
        send_on_commit(Message(settings.ORDERS_TOPIC, b"placed", key=number), timeout_s=30)
    return HttpResponse(status=202)
