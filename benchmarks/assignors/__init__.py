"""How fast the assignors are, beside those of other clients."""
