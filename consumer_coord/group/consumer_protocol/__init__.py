"""A member of the consumer protocol (KIP-848), in which the broker assigns and every member goes its own way.

``states.py`` the member's states as a table; ``reconciliation.py`` what the group wants beside what is held; ``requests.py``
what a heartbeat has to say; ``answers.py`` what an answer asks for; ``patterns.py`` which patterns the broker can resolve.
All of those are pure.
"""
