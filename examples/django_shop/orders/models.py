"""Orders."""

from django.db import models


class Order(models.Model):
    """An order; it is paid when the listener has charged it."""

    number = models.CharField(primary_key=True, max_length=40)
    paid = models.BooleanField(default=False)

    def __str__(self) -> str:
        """Return the number."""
        return str(self.number)
