"""A Django project that places orders and charges them in consumer processes.

    rocketshim dev                                                     # in another terminal
    python manage.py migrate --run-syncdb
    python manage.py rocketshim_consume --group payments --processes 2
    python manage.py runserver                                         # in a third terminal
    curl -X POST localhost:8000/orders/o-7

ROCKETSHIM_BOOTSTRAP, ROCKETSHIM_NAMESPACE and SHOP_DATABASE change the settings.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
