"""The main job, live: a stream of orders, a group with an assignor in Python, members that come, go and die."""
