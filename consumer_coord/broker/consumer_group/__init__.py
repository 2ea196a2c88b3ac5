"""The broker's side of the consumer protocol (KIP-848).

| Kafka's class or method | where |
| --- | --- |
| ConsumerGroup, ConsumerGroupMember | :mod:`.group`, :mod:`.member` |
| CurrentAssignmentBuilder | :mod:`.reconciliation` |
| TargetAssignmentBuilder, UniformAssignor, RangeAssignor | :mod:`.target_assignment`, :mod:`.assignors` |
| TopicRegexResolver | :mod:`.regex` |
| records and their replay | :mod:`.records` |
| consumerGroupHeartbeat, consumerGroupLeave, timers | :mod:`.heartbeat`, :mod:`.membership`, :mod:`.fencing` |
| JoinGroup, SyncGroup, Heartbeat and LeaveGroup of classic members | :mod:`.classic_members` |
| convertToConsumerGroup, convertToClassicGroup | :mod:`.conversion` |
"""
