"""The settings of a small project; `ROCKETSHIM` is what rocketshim needs."""

import os

ROCKETSHIM = {
    "bootstrap": os.environ.get("ROCKETSHIM_BOOTSTRAP", "localhost:9092"),
    "namespace": os.environ.get("ROCKETSHIM_NAMESPACE", ""),
    "groups": {"payments": {"consume_thread_min": 4}},
}
ORDERS_TOPIC = os.environ.get("SHOP_TOPIC", "orders")

INSTALLED_APPS = ["rocketshim.contrib.django", "orders"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3"),
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
ALLOWED_HOSTS = ["localhost", "testserver"]
ROOT_URLCONF = "shop.urls"
SECRET_KEY = "only for this example"  # noqa: S105 - nothing is signed here
USE_TZ = True
