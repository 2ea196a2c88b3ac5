"""The engine of the sticky assignors and of the load assignor.

====================  ==============================================================================================
``claims``            the owner of each partition, according to the members' claims
``levels``            the number of partitions of each class of members
``least_moves``       the partitions that the members keep, so that the fewest partitions move
``lots``              partitions that the search treats alike, by topic or by rack
``dealing``           the members of the partitions without an owner
``sticky_plan``       the sticky plan, which combines these steps
``balance``           even sums of figures instead of even numbers, for the load assignor
``sticky_user_data``  the bytes of a member's last assignment, as in Java's assignors
``last_assignment``   assignors whose members send their last assignment
====================  ==============================================================================================
"""
