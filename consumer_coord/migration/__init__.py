"""Plan and follow the move of a group to another protocol, assignor or client: ``consumer-coord migrate``.

===============  ===================================================================================
``group.py``     the group and the brokers' settings, as values
``read.py``      the requests for them
``clients.py``   which client a member probably is
``plans.py``     what prevents the move, what the group loses, and in which order to restart members
``progress.py``  how far the move is, and whether going back is safe
``text.py``      all of it as text and as JSON
``command.py``   the command
===============  ===================================================================================
"""
