"""``consumer-coord watch``: a page that shows groups as they go: who owned which partition when, and what it cost.

| step | where |
| --- | --- |
| ask the brokers, a look at a time | ``collect.py``, as values of ``looks.py`` |
| what changed since the look before, and which rebalance that was | ``model.py``, ``reasons.py`` |
| keep a bounded past for pages that are opened later | ``history.py`` |
| write it down, read it again | ``recording.py`` |
| serve the page and the changes (server-sent events) | ``server.py``, ``static/`` |
| one page with everything in it | ``page.py`` |
"""
