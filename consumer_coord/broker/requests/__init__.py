"""What each request does, one module per family, and the table of what is served (:mod:`.served`)."""
