"""orch: from one YAML spec to a predicted, proven, measured JAX training run.

    import orchestrator as orch
    plan = orch.plan("specs/llama3_70b_4pod.yaml")
    plan.forecast.step_s.expected

`orchestrator/api/` defines every name; docs/api.md shows them. Each function imports what it needs
when it is called, so that this package stays light to import.
"""

import sys
from types import ModuleType

from orchestrator.run.api import *
from orchestrator.run.api import __all__ as __all__


class _Api(ModuleType):
    """Keeps `orch.plan` a function after the package `orchestrator.planning` is imported.

    Python assigns an imported package to its parent, under the name that the function has.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Api
