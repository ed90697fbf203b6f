"""A spec worked out by hand, as a book on scaling does it, and compared with its plan."""
