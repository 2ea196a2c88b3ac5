"""The version of this package, readable without an import of the whole package."""

__version__ = "0.1.0"
