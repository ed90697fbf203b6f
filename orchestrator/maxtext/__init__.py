"""MaxText's runs as specs, and plans as MaxText's runs. It knows their keys."""

from orchestrator.maxtext.conversion import ImportedSpec, convert
from orchestrator.maxtext.exported_run import MaxTextRun, NotForMaxText, run_of
from orchestrator.maxtext.recipe import Recipe, RecipeProblems, read_recipe
from orchestrator.maxtext.run_script import script_of

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
