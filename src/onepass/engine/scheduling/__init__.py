"""Which work the device gets next: order among requests, batches, launches, and what steps cost."""
