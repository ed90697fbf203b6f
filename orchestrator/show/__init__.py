"""Text for terminals and HTML pages for browsers, from values. Decides nothing.

Each `*_screen` module shows one kind of value; `screen_parts` serves all of them, `page` has
the HTML pages. `terminal` prints, and `display` prints the events of an operation as they come.
The package imports types and arithmetic, and no click, JAX, Ray or MLflow.
"""
