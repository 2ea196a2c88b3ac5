"""Users' programs in virtual time: what :func:`consumer_coord.testing.simulated` plays.

``decorator.py`` plays a test for each seed and shrinks what fails; ``world.py`` is one run: simulated brokers, processes that
run the user's coroutine function (``lives.py``), and faults (``faults.py``). ``handled.py`` compares what was handled with what
was committed. ``guard.py`` rejects what a program may not do in virtual time. Everything goes through the loop of a process
(``process.py``).
"""
