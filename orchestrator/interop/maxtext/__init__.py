"""MaxText's runs as specs, and plans as MaxText's runs. It knows their keys."""
