"""The handlers of requests, one module per family, and the table of served requests (:mod:`.handlers`)."""
