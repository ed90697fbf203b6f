"""MaxText's recipes as specs. It knows MaxText's keys, xpk's options, and nothing of a plan."""

from orchestrator.maxtext.conversion import ImportedSpec, convert
from orchestrator.maxtext.recipe import Recipe, RecipeProblems, read_recipe

__all__ = ["ImportedSpec", "Recipe", "RecipeProblems", "convert", "read_recipe"]
