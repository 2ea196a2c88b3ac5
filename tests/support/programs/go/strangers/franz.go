package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func init() {
	operations["group"] = func(ctx context.Context, servers []string, name string) { group(ctx, servers, name) }
	operations["consumer-group"] = func(ctx context.Context, servers []string, name string) {
		group(context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true), servers, name)
	}
	operations["transactions"] = transactions
	operations["exactly-once"] = exactlyOnce
	operations["timeout"] = timeout
	operations["admin-topics"] = adminTopics
	operations["admin-groups"] = adminGroups
	operations["admin-transactions"] = adminTransactions
	operations["admin-producers"] = adminProducers
	operations["admin-log-dirs"] = adminLogDirs
	operations["admin-leaders"] = adminLeaders
	operations["admin-features"] = adminFeatures
	operations["admin-quotas"] = adminQuotas
	operations["admin-brokers"] = adminBrokers
	operations["share-group"] = shareGroup
}

func client(ctx context.Context, servers []string, options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(servers...), kgo.WithContext(ctx)}, options...)...)
	check(err, "a client")
	return made
}

func admin(ctx context.Context, servers []string) *kadm.Client {
	return kadm.NewClient(client(ctx, servers))
}

func newTopic(ctx context.Context, servers []string, topic string, partitions int32) {
	made := admin(ctx, servers)
	defer made.Close()
	_, err := made.CreateTopic(ctx, partitions, 3, nil, topic)
	check(err, "CreateTopics")
}

func read(ctx context.Context, from *kgo.Client, atLeast int) []string {
	ctx, cancel := context.WithTimeout(ctx, waiting)
	defer cancel()
	var values []string
	for len(values) < atLeast {
		fetches := from.PollFetches(ctx)
		if ctx.Err() != nil {
			fail("%d of %d records", len(values), atLeast)
		}
		check(fetches.Err(), "Fetch")
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values
}

func committed(ctx context.Context, servers []string, topic string, atLeast int) string {
	reader := client(ctx, servers, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer reader.Close()
	return strings.Join(read(ctx, reader, atLeast), " ")
}

// A member of a group counts its partitions.
type groupMember struct {
	*kgo.Client
	owned atomic.Int32
}

func member(ctx context.Context, servers []string, group, topic string) *groupMember {
	made := &groupMember{}
	change := func(sign int32) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			made.owned.Add(sign * int32(len(changed[topic])))
		}
	}
	made.Client = client(ctx, servers, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.OnPartitionsAssigned(change(1)),
		kgo.OnPartitionsRevoked(change(-1)), kgo.OnPartitionsLost(change(-1)))
	return made
}

func group(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, partitions)
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	for _, codec := range codecs {
		producer := client(ctx, servers, kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for number := range count / len(codecs) {
			record := &kgo.Record{Topic: name, Value: []byte(value(number)), Partition: int32(number % partitions)}
			check(producer.ProduceSync(ctx, record).FirstErr(), "Produce")
		}
		producer.Close()
	}
	first := member(ctx, servers, name, name)
	expect(len(read(ctx, first.Client, count)), count, "records")
	check(first.CommitUncommittedOffsets(ctx), "OffsetCommit")
	second := member(ctx, servers, name, name)
	until := time.Now().Add(waiting)
	for first.owned.Load() == 0 || second.owned.Load() == 0 || first.owned.Load()+second.owned.Load() != partitions {
		if time.Now().After(until) {
			fail("two members do not share the topic: %d and %d partitions", first.owned.Load(), second.owned.Load())
		}
		for _, one := range []*groupMember{first, second} {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			fetches := one.PollFetches(short)
			cancel()
			expect(fetches.NumRecords(), 0, "records that were read twice")
		}
	}
	first.Close()
	second.Close()
	offsets, err := admin(ctx, servers).FetchOffsets(ctx, name)
	check(err, "OffsetFetch")
	var sum int64
	offsets.Each(func(one kadm.OffsetResponse) { sum += one.At })
	expect(sum, count, "committed offsets")
}

func transactional(ctx context.Context, servers []string, id string, options ...kgo.Opt) *kgo.Client {
	return client(ctx, servers, append(options, kgo.TransactionalID(id))...)
}

func write(ctx context.Context, producer *kgo.Client, topic, value string) {
	check(producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(), "Produce")
}

func transactions(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, 1)
	old := transactional(ctx, servers, name)
	for _, one := range []struct {
		value string
		end   kgo.TransactionEndTry
	}{{"a", kgo.TryCommit}, {"b", kgo.TryAbort}, {"c", kgo.TryCommit}} {
		check(old.BeginTransaction(), "begin")
		write(ctx, old, name, one.value)
		check(old.EndTransaction(ctx, one.end), "EndTxn")
	}
	check(old.BeginTransaction(), "begin")
	write(ctx, old, name, "d")
	successor := transactional(ctx, servers, name)
	check(successor.BeginTransaction(), "begin")
	write(ctx, successor, name, "e")
	err := old.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		fail("the old producer was not fenced: %v", err)
	}
	check(successor.EndTransaction(ctx, kgo.TryCommit), "EndTxn")
	expect(committed(ctx, servers, name, 3), "a c e", "committed values")
}

func exactlyOnce(ctx context.Context, servers []string, name string) {
	source, sink := name+"-source", name+"-sink"
	newTopic(ctx, servers, source, 1)
	newTopic(ctx, servers, sink, 1)
	producer := client(ctx, servers)
	for number := range 10 {
		write(ctx, producer, source, value(number))
	}
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(servers...), kgo.WithContext(ctx), kgo.TransactionalID(name),
		kgo.ConsumerGroup(name), kgo.ConsumeTopics(source), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())
	check(err, "a session")
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		var values []*kgo.Record
		for len(values) < 10 {
			fetches := session.PollFetches(ctx)
			check(fetches.Err(), "Fetch")
			fetches.EachRecord(func(record *kgo.Record) { values = append(values, &kgo.Record{Topic: sink, Value: record.Value}) })
		}
		check(session.Begin(), "begin")
		for _, record := range values {
			session.Produce(ctx, record, nil)
		}
		ended, err := session.End(ctx, end)
		check(err, "the end of the transaction")
		expect(ended, bool(end), "committed")
	}
	session.Close()
	expect(committed(ctx, servers, sink, 10), "0 1 2 3 4 5 6 7 8 9", "committed values")
	offsets, err := admin(ctx, servers).FetchOffsets(ctx, name)
	check(err, "OffsetFetch")
	offset, _ := offsets.Lookup(source, 0)
	expect(offset.At, 10, "committed offset")
}

func timeout(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, 1)
	slow := transactional(ctx, servers, name, kgo.TransactionTimeout(time.Second))
	check(slow.BeginTransaction(), "begin")
	write(ctx, slow, name, "never")
	other := client(ctx, servers)
	write(ctx, other, name, "after")
	expect(committed(ctx, servers, name, 1), "after", "committed values")
}

func text(value string) *string { return &value }

func adminTopics(ctx context.Context, servers []string, name string) {
	calls := admin(ctx, servers)
	_, err := calls.CreateTopic(ctx, 1, 3, map[string]*string{"cleanup.policy": text("compact"), "segment.bytes": text("1048576")}, name)
	check(err, "CreateTopics")
	_, err = calls.UpdatePartitions(ctx, 2, name)
	check(err, "CreatePartitions")
	eventually(2, "partitions", func() int {
		topics, err := calls.ListTopics(ctx, name)
		check(err, "Metadata")
		return len(topics[name].Partitions)
	})
	altered, err := calls.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: text("delete")}}, name)
	check(err, "IncrementalAlterConfigs")
	check(altered[0].Err, "IncrementalAlterConfigs")
	eventually("delete", "cleanup.policy", func() (value string) {
		described, err := calls.DescribeTopicConfigs(ctx, name)
		check(err, "DescribeConfigs")
		for _, one := range described[0].Configs {
			if one.Key == "cleanup.policy" {
				value = one.MaybeValue()
			}
		}
		return value
	})
	producer := client(ctx, servers, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for number := range 10 {
		write(ctx, producer, name, value(number))
	}
	deleted, err := calls.DeleteRecords(ctx, kadm.OffsetsFromRecords(kgo.Record{Topic: name, Offset: 4, LeaderEpoch: -1}))
	check(err, "DeleteRecords")
	check(deleted.Error(), "DeleteRecords")
	starts, err := calls.ListStartOffsets(ctx, name)
	check(err, "ListOffsets")
	start, _ := starts.Lookup(name, 0)
	ends, err := calls.ListEndOffsets(ctx, name)
	check(err, "ListOffsets")
	end, _ := ends.Lookup(name, 0)
	expect(start.Offset, 5, "start offset")
	expect(end.Offset, 10, "end offset")
	var request kadm.OffsetForLeaderEpochRequest
	request.Add(name, 0, 0)
	epochs, err := calls.OffsetForLeaderEpoch(ctx, request)
	check(err, "OffsetForLeaderEpoch")
	expect(epochs[name][0].EndOffset, 10, "end offset of the epoch")
	_, err = calls.DeleteTopic(ctx, name)
	check(err, "DeleteTopics")
}

func adminGroups(ctx context.Context, servers []string, name string) {
	calls := admin(ctx, servers)
	newTopic(ctx, servers, name, 1)
	producer := client(ctx, servers)
	for number := range 10 {
		write(ctx, producer, name, value(number))
	}
	reader := member(ctx, servers, name, name)
	read(ctx, reader.Client, 10)
	check(reader.CommitUncommittedOffsets(ctx), "OffsetCommit")
	described, err := calls.DescribeGroups(ctx, name)
	check(err, "DescribeGroups")
	expect(described[name].State, "Stable", "state")
	expect(len(described[name].Members), 1, "members")
	write(ctx, producer, name, "last")
	lags, err := calls.Lag(ctx, name)
	check(err, "the lag")
	lag := lags[name]
	check(lag.Error(), "the lag")
	expect(lag.Lag.Total() <= 1, true, "lag of at most 1")
	var held kadm.Offsets
	held.AddOffset(name, 0, 2, -1)
	refused, err := calls.CommitOffsets(ctx, name, held)
	check(err, "OffsetCommit")
	if !errors.Is(refused.Error(), kerr.UnknownMemberID) {
		fail("offsets of a group with members were changed from outside: %v", refused.Error())
	}
	reader.Close()
	set, err := calls.CommitOffsets(ctx, name, held)
	check(err, "OffsetCommit")
	check(set.Error(), "OffsetCommit")
	listed, err := calls.ListGroups(ctx)
	check(err, "ListGroups")
	expect(listed[name].State, "Empty", "state")
	var topics kadm.TopicsSet
	topics.Add(name, 0)
	gone, err := calls.DeleteOffsets(ctx, name, topics)
	check(err, "OffsetDelete")
	check(gone.Error(), "OffsetDelete")
	_, err = calls.DeleteGroup(ctx, name)
	check(err, "DeleteGroups")
}

func adminTransactions(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, 1)
	producer := transactional(ctx, servers, name)
	check(producer.BeginTransaction(), "begin")
	write(ctx, producer, name, "a")
	calls := admin(ctx, servers)
	listed, err := calls.ListTransactions(ctx, nil, []string{"Ongoing"})
	check(err, "ListTransactions")
	expect(listed[name].State, "Ongoing", "listed state")
	described, err := calls.DescribeTransactions(ctx, name)
	check(err, "DescribeTransactions")
	expect(described[name].State, "Ongoing", "described state")
	expect(len(described[name].Topics.Sorted()), 1, "topics")
	check(producer.EndTransaction(ctx, kgo.TryCommit), "EndTxn")
	eventually("CompleteCommit", "described state", func() string {
		described, err = calls.DescribeTransactions(ctx, name)
		check(err, "DescribeTransactions")
		return described[name].State
	})
}

func adminProducers(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, 1)
	producer := transactional(ctx, servers, name)
	check(producer.BeginTransaction(), "begin")
	write(ctx, producer, name, "a")
	calls := admin(ctx, servers)
	var topics kadm.TopicsSet
	topics.Add(name, 0)
	producers, err := calls.DescribeProducers(ctx, topics)
	check(err, "DescribeProducers")
	check(producers[name].Partitions[0].Err, "DescribeProducers")
	active := producers[name].Partitions[0].ActiveProducers.Sorted()
	expect(len(active), 1, "active producers")
	expect(active[0].CurrentTxnStartOffset, 0, "start of the transaction")
	// As kafka-transactions abort does it for a transaction that hangs.
	var hanging kadm.TxnMarkers
	hanging.ProducerID, hanging.ProducerEpoch, hanging.Topics = active[0].ProducerID, int16(active[0].ProducerEpoch), topics
	written, err := calls.WriteTxnMarkers(ctx, hanging)
	check(err, "WriteTxnMarkers")
	written.EachPartition(func(one kadm.TxnMarkersPartitionResponse) { check(one.Err, "WriteTxnMarkers") })
}

func adminLogDirs(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, 1)
	producer := client(ctx, servers)
	write(ctx, producer, name, "a")
	described, err := admin(ctx, servers).DescribeAllLogDirs(ctx, nil)
	check(err, "DescribeLogDirs")
	expect(len(described), 3, "brokers")
	var size int64
	described.Each(func(one kadm.DescribedLogDir) {
		check(one.Err, "DescribeLogDirs")
		for _, partition := range one.Topics[name] {
			size += partition.Size
		}
	})
	expect(size > 0, true, "the size of the topic is positive")
}

func adminLeaders(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, 1)
	calls := admin(ctx, servers)
	var topics kadm.TopicsSet
	topics.Add(name, 0)
	elected, err := calls.ElectLeaders(ctx, kadm.ElectPreferredReplica, topics)
	check(err, "ElectLeaders")
	if err := elected[name][0].Err; err != nil && !errors.Is(err, kerr.ElectionNotNeeded) {
		fail("ElectLeaders: %v", err)
	}
	moves, err := calls.ListPartitionReassignments(ctx, topics)
	check(err, "ListPartitionReassignments")
	expect(len(moves), 0, "moves")
	listed, err := calls.BrokerMetadata(ctx)
	check(err, "Metadata")
	ids := listed.Brokers.NodeIDs()
	var wanted kadm.AlterPartitionAssignmentsReq
	wanted.Assign(name, 0, []int32{ids[2], ids[1], ids[0]})
	moved, err := calls.AlterPartitionAssignments(ctx, wanted)
	check(err, "AlterPartitionReassignments")
	check(moved.Error(), "AlterPartitionReassignments")
}

func adminFeatures(ctx context.Context, servers []string, _ string) {
	made := client(ctx, servers)
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, made)
	check(err, "ApiVersions")
	check(kerr.ErrorForCode(answer.ErrorCode), "ApiVersions")
	levels := map[string]int16{}
	for _, feature := range answer.FinalizedFeatures {
		levels[feature.Name] = feature.MaxVersionLevel
	}
	expect(levels["transaction.version"], 2, "level of transaction.version")
	request := kmsg.NewPtrUpdateFeaturesRequest()
	request.ValidateOnly = true
	update := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	update.Feature, update.MaxVersionLevel, update.UpgradeType = "transaction.version", 2, 1
	request.FeatureUpdates = append(request.FeatureUpdates, update)
	updated, err := request.RequestWith(ctx, made)
	check(err, "UpdateFeatures")
	check(kerr.ErrorForCode(updated.ErrorCode), "UpdateFeatures")
}

func adminQuotas(ctx context.Context, servers []string, name string) {
	calls := admin(ctx, servers)
	entity := []kadm.ClientQuotaEntityComponent{{Type: "client-id", Name: text(name)}}
	set := []kadm.AlterClientQuotaEntry{{Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "consumer_byte_rate", Value: 1e6}}}}
	altered, err := calls.AlterClientQuotas(ctx, set)
	check(err, "AlterClientQuotas")
	check(altered[0].Err, "AlterClientQuotas")
	exactly := []kadm.DescribeClientQuotaComponent{{Type: "client-id", MatchName: text(name), MatchType: kmsg.QuotasMatchTypeExact}}
	eventually(1e6, "the quota", func() (quota float64) {
		described, err := calls.DescribeClientQuotas(ctx, true, exactly)
		check(err, "DescribeClientQuotas")
		for _, one := range described {
			quota = one.Values[0].Value
		}
		return quota
	})
}

func adminBrokers(ctx context.Context, servers []string, _ string) {
	calls := admin(ctx, servers)
	listed, err := calls.BrokerMetadata(ctx)
	check(err, "Metadata")
	broker := listed.Brokers.NodeIDs()[0]
	described, err := calls.DescribeBrokerConfigs(ctx, broker)
	check(err, "DescribeConfigs")
	check(described[0].Err, "DescribeConfigs")
	altered, err := calls.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "message.max.bytes", Value: text("2000000")}}, broker)
	check(err, "IncrementalAlterConfigs")
	check(altered[0].Err, "IncrementalAlterConfigs")
	eventually("2000000", "message.max.bytes", func() (value string) {
		described, err = calls.DescribeBrokerConfigs(ctx, broker)
		check(err, "DescribeConfigs")
		for _, one := range described[0].Configs {
			if one.Key == "message.max.bytes" {
				value = one.MaybeValue()
			}
		}
		return value
	})
}

func shareGroup(ctx context.Context, servers []string, name string) {
	newTopic(ctx, servers, name, 1)
	reader := client(ctx, servers, kgo.ShareGroup(name), kgo.ConsumeTopics(name))
	producer := client(ctx, servers)
	until, cancel := context.WithTimeout(ctx, waiting)
	defer cancel()
	for number := 0; ; number++ {
		// A share group starts at the end of the topic.
		write(ctx, producer, name, value(number))
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		fetches := reader.PollFetches(short)
		cancel()
		if fetches.NumRecords() > 0 {
			return
		}
		if until.Err() != nil {
			fail("no record: %v", fetches.Err())
		}
	}
}
