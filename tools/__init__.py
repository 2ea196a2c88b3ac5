"""Scripts of this repository; not installed."""
