"""The process of the doctor that imports JAX: it prints which devices there are.

python -m orchestrator.run.doctor_child
"""

import json
import sys

import jax


def main() -> None:
    """Print one line of JSON: how many devices, of which platform and kind."""
    devices = jax.devices()
    first = devices[0]
    answer = {"count": len(devices), "platform": first.platform, "kind": first.device_kind}
    print(json.dumps(answer), file=sys.stdout)


if __name__ == "__main__":
    main()
