"""The speed of the assignors, compared with the assignors of other clients."""
