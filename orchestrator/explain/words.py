"""Explain room: how its sentences put numbers."""


def short(value: float) -> str:
    """Four digits are enough to follow a comparison: 113.4, 73,440."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(fraction: float, sign: str = "") -> str:
    return f"{fraction * 100:{sign}.1f} %"


def in_days(value: float) -> str:
    """Days to a tenth, as far as that says something: 44.7, 1,752, 0.034."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def assumed(mfu: float) -> str:
    """An MFU as it was stated, with no digits of its own."""
    return f"{mfu * 100:g} % MFU"


def bound_by(times: float) -> str:
    """What binds, and by how much: `times` is what there is over what computing takes."""
    return f"compute-bound by {times:.2f} x" if times > 1 else f"comms-bound by {1 / times:.2f} x"


def power_of_two(limit: float) -> int:
    """The largest one that is no more than the limit, which is at least one."""
    return 1 << (int(limit).bit_length() - 1)
