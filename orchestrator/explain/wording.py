"""Phrases that the sentences of an explanation share."""


def assumed(mfu: float) -> str:
    """An MFU with the digits that were stated."""
    return f"{mfu * 100:g} % MFU"


def bound_by(times: float) -> str:
    """What binds, and by how much: `times` is what there is over what computing takes."""
    return f"compute-bound by {times:.3g} x" if times > 1 else f"comms-bound by {1 / times:.3g} x"
