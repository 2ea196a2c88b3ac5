"""Tools of the project; none of them is installed."""
