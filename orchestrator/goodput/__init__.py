"""The share of time that trains: predicted from failures, saves and restarts. Arithmetic only."""
