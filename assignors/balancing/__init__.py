"""The engine of the sticky assignors and of the load assignor.

``claims``            which member owns which partition, according to the members' claims ``levels``            how many
partitions each class of members should have ``least_moves``       which partitions the members keep, so that the fewest move
``lots``              partitions that the search treats alike, by topic or by rack ``dealing``           which members get the
partitions without an owner ``sticky_plan``       the sticky plan, which combines these steps ``balance``           even sums of
figures instead of even numbers, for the load assignor ``sticky_user_data``  the bytes in which members send their last
assignment, as Java's assignors do ``last_assignment``   assignors whose members send their last assignment
"""
