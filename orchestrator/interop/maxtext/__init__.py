"""MaxText's runs as specs, and plans as MaxText's runs. It knows their keys."""

from orchestrator.interop.maxtext.conversion import ImportedSpec, convert
from orchestrator.interop.maxtext.exported_run import MaxTextRun, NotForMaxText, run_of, script_of
from orchestrator.interop.maxtext.recipe import Recipe, RecipeProblems, read_recipe

__all__ = [
    "ImportedSpec",
    "MaxTextRun",
    "NotForMaxText",
    "Recipe",
    "RecipeProblems",
    "convert",
    "read_recipe",
    "run_of",
    "script_of",
]
