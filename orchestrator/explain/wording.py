"""Numbers as the sentences of an explanation show them."""


def short(value: float) -> str:
    """Four digits are enough to follow a comparison: 113.4, 73,440."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(fraction: float, sign: str = "") -> str:
    return f"{fraction * 100:{sign}.1f} %"


def lasting(days: float) -> str:
    """A duration in a suitable unit: 1,752 days, 44.7 days, 3.2 hours, 0.011 s."""
    if days >= 100:
        return f"{days:,.0f} days"
    if days >= 1:
        return f"{days:.1f} days"
    if days * 24 >= 1:
        return f"{days * 24:.1f} hours"
    return f"{days * 1_440:.1f} minutes" if days * 1_440 >= 1 else f"{days * 86_400:.2g} s"


def lasting_between(low: float, high: float) -> str:
    """Two durations, with one unit if they share it: 18.4 to 36.3 days."""
    first, last = lasting(low), lasting(high)
    return f"{first.removesuffix(' ' + last.split()[-1])} to {last}"


def assumed(mfu: float) -> str:
    """An MFU with the digits that were stated."""
    return f"{mfu * 100:g} % MFU"


def bound_by(times: float) -> str:
    """What binds, and by how much: `times` is what there is over what computing takes."""
    return f"compute-bound by {times:.3g} x" if times > 1 else f"comms-bound by {1 / times:.3g} x"


def power_of_two(limit: float) -> int:
    """The largest one that is no more than the limit, which is at least one."""
    return 1 << (int(limit).bit_length() - 1)
