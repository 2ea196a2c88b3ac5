"""Groups in virtual time: the production client and the broker's half on one simulated clock and network.

``loop``        an asyncio event loop whose time jumps to the next timer
``network``     connections that delay, break and split, from one seeded generator
``faults``      the kinds of faults, one function each
``cluster``     brokers of the simulation, each the production group coordinator
``data_plane``  librdkafka's habits in virtual time
``consumer``    the production consumer over both
``calls``       what an application may expect of each call
``application`` members that read, process, commit, crash, hang and come back
``checkers``    what must hold at every step
``scenario``    what one history is made of, as data
``drawing``     from a seed to a scenario
``stage``       what members run on
``world``       the members of one history, and their lives
``play``        one history, from start to end
``command``     ``python -m consumer_coord simulate``
``report``      what a rolling deploy does to a group, as one HTML page

Nothing of production imports this package.
"""
