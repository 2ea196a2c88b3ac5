"""Groups in virtual time: the production client and broker code on one simulated clock and network.

``loop``        an asyncio event loop whose time jumps to the next timer
``network``     connections that delay, break and split, from one seeded generator
``faults``      the kinds of faults, one function each
``brokers``     the production brokers, in simulated processes
``record_log``  the logs of runs in which members send Fetch requests
``columns``     applications that read columns with the production Fetch code
``consumer``    the production consumer over the simulated network
``calls``       the rules for each call of an application
``application`` members that read, process, commit, crash, hang and return
``checkers``    the rules that hold at every step
``duties``      the rules about heartbeats, joins and acknowledgements that come too late
``idle``        the rule about what an idle group sends
``health``      the rule about ``consumer.health()``
``scenario``    the contents of one simulation run, as data
``drawing``     from a seed to a scenario
``alone``       changes of a stable group that happen alone
``stage``       the environment of members
``world``       on a stage: all processes of the members, and the topics
``stability``   whether the group is stable and has read everything
``play``        one simulation run, from start to end
``reach``       what a simulation run reaches
``search``      scenarios that reach something new are kept, and changed
``command``     ``python -m consumer_coord simulate``
``scaling``     a group that is scaled by its past lag
``report``      the effect of a rolling deploy on a group, as one HTML page

Production code never imports this package.
"""
