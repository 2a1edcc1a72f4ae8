"""Shell of the delay-redelivery worker."""
