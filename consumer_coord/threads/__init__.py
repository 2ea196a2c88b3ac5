"""For blocking APIs: the background thread with its loop (``background.py``), and the coordinator for threads on top of it."""
