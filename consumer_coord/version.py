"""The version of this package; what asks for it need not import the package's public names."""

__version__ = "0.1.0"
