"""The speed of the assignors, compared with those of other clients."""
