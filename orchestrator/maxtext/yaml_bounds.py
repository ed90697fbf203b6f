"""YAML of others, of which no text may make values that are much larger than it."""

import yaml

DEEPEST = 16  # nested values


def check_bounded(text: str) -> None:
    """Refuse what could grow when values are made of it: aliases, and depth."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"the alias *{event.anchor} is not served")
        if depth > DEEPEST:
            raise ValueError(f"it has more than {DEEPEST} levels")
