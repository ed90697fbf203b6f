"""Values as text and pages: each `*_screen` module shows one kind of value, `pages` writes HTML."""
