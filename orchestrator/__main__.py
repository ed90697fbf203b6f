"""`python -m orchestrator` is `orch`."""

import gc
import os
import signal


def main() -> None:
    """Run a command. Until it has begun, Ctrl-C ends the process at once, with one line."""

    def end(*_: object) -> None:
        # An exception might be lost, or become another one, inside what is being imported.
        os.write(2, b"\ninterrupted\n" if os.isatty(2) else b"interrupted\n")
        os._exit(130)

    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, end)
    gc.set_threshold(100_000)  # imports make much that lives on, in which no garbage is to be found
    from orchestrator import cli  # noqa: PLC0415  half a second, of which this must take care

    cli.main(lambda: signal.signal(signal.SIGINT, usual))


if __name__ == "__main__":
    main()
