"""Doctor room: the child process, which alone knows JAX: it tells what devices there are.

python -m orchestrator.doctor.child
"""

import json
import sys

import jax


def main() -> None:
    """One line of JSON: how many devices of which platform and kind."""
    devices = jax.devices()
    found = {"count": len(devices), "platform": devices[0].platform, "kind": devices[0].device_kind}
    print(json.dumps(found), file=sys.stdout)


if __name__ == "__main__":
    main()
