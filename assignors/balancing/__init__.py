"""The engine of the sticky assignors and of the load assignor.

====================  ==============================================================================================
``claims``            the owner of each partition, according to the members' claims
``levels``            the number of partitions of each class of members
``least_moves``       the partitions that the members keep, so that as few partitions as possible move
``lots``              sets of interchangeable partitions, by topic or by topic and racks
``dealing``           which members get the partitions without an owner
``sticky_plan``       the sticky plan, which combines these steps
``balance``           even sums of figures (such as lag), for the load assignor
``sticky_user_data``  the bytes of a member's last assignment, as in Java's assignors
``last_assignment``   assignors whose members send their last assignment
====================  ==============================================================================================
"""
