"""The engine of the sticky assignors and of the load assignor.

``claims``            who owns what, out of what the members claim
``levels``            how many partitions each class of members should have
``least_moves``       which of their partitions members keep, so that the fewest move
``lots``              partitions that are alike to the search, by topic or by rack
``dealing``           which members get the partitions without an owner
``sticky_plan``       all of it together: the sticky plan
``balance``           even sums of figures instead of even numbers, for the load assignor
``sticky_user_data``  the bytes in which members send what they were given, as Java's assignors do
``last_assignment``   assignors whose members send it
"""
