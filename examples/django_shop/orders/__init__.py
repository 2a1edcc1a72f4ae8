"""The application: orders, the view that places them, and the listener that charges them."""
