"""A live demo of the main use: a stream of orders, a group with an assignor in Python, and members that come, leave and die."""
