"""stations to text for people. Decides nothing, computes nothing but layout."""
