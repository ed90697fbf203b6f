"""The forecast held to training runs that others published, and the constants learned of them."""
