"""The version of this package, readable without importing the package's public names."""

__version__ = "0.1.0"
