"""``consumer-coord watch``: a web page that shows the owner of each partition over time, and each rebalance of a group.

| step | where |
| --- | --- |
| take snapshots of groups from the brokers | ``collect.py``, as values of ``snapshots.py`` |
| find the changes since the previous snapshot, and their rebalance | ``changes.py``, ``reasons.py`` |
| keep a bounded history for pages that are opened later | ``history.py`` |
| write and read recordings | ``recording.py`` |
| serve the page and the changes (server-sent events) | ``server.py``, ``static/`` |
| make one self-contained page | ``page.py`` |
"""
