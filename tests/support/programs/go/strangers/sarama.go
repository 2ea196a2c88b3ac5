package main

import (
	"context"
	"strings"

	"github.com/IBM/sarama"
)

func init() {
	operations["sarama-group"] = saramaGroup
	operations["sarama-transactions"] = saramaTransactions
	operations["sarama-admin"] = saramaAdmin
}

func config(name string) *sarama.Config {
	made := sarama.NewConfig()
	made.ClientID = name
	made.Version = sarama.MaxVersion
	made.Producer.Return.Successes = true
	made.Producer.Partitioner = sarama.NewManualPartitioner
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	return made
}

func saramaTopic(servers []string, name string, partitions int32) sarama.ClusterAdmin {
	calls, err := sarama.NewClusterAdmin(servers, config(name))
	check(err, "an admin")
	check(calls.CreateTopic(name, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 3}, false), "CreateTopics")
	return calls
}

// A handler that hands over what it reads, and commits it at the end.
type handler struct{ values chan string }

func (handler) Setup(sarama.ConsumerGroupSession) error { return nil }

func (handler) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (to handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return nil
			}
			session.MarkMessage(message, "")
			to.values <- string(message.Value)
		case <-session.Context().Done():
			return nil
		}
	}
}

func saramaRead(ctx context.Context, servers []string, settings *sarama.Config, group, topic string, atLeast int) []string {
	reader, err := sarama.NewConsumerGroup(servers, group, settings)
	check(err, "a member")
	ctx, cancel := context.WithTimeout(ctx, waiting)
	defer cancel()
	to, ended := handler{make(chan string, 2*atLeast)}, make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := reader.Consume(ctx, []string{topic}, to); err != nil {
				ended <- err
				return
			}
		}
	}()
	var values []string
	for len(values) < atLeast {
		select {
		case value := <-to.values:
			values = append(values, value)
		case err := <-ended:
			fail("the member: %v", err)
		case <-ctx.Done():
			fail("%d of %d records", len(values), atLeast)
		}
	}
	cancel()
	check(reader.Close(), "the end of the member")
	return values
}

func saramaGroup(ctx context.Context, servers []string, name string) {
	calls := saramaTopic(servers, name, partitions)
	codecs := []sarama.CompressionCodec{
		sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
	}
	for _, codec := range codecs {
		settings := config(name)
		settings.Producer.Compression = codec
		settings.Producer.Idempotent, settings.Net.MaxOpenRequests, settings.Producer.RequiredAcks = true, 1, sarama.WaitForAll
		producer, err := sarama.NewSyncProducer(servers, settings)
		check(err, "a producer")
		for number := range count / len(codecs) {
			_, _, err = producer.SendMessage(&sarama.ProducerMessage{
				Topic: name, Partition: int32(number % partitions), Value: sarama.StringEncoder(value(number)),
			})
			check(err, "Produce")
		}
		check(producer.Close(), "the end of the producer")
	}
	expect(len(saramaRead(ctx, servers, config(name), name, name, count)), count, "records")
	offsets, err := calls.ListConsumerGroupOffsets(name, nil)
	check(err, "OffsetFetch")
	var sum int64
	for _, block := range offsets.Blocks[name] {
		sum += block.Offset
	}
	expect(sum, count, "committed offsets")
	described, err := calls.DescribeConsumerGroups([]string{name})
	check(err, "DescribeGroups")
	expect(described[0].State, "Empty", "state")
	check(calls.DeleteConsumerGroup(name), "DeleteGroups")
}

func saramaTransactions(ctx context.Context, servers []string, name string) {
	saramaTopic(servers, name, 1)
	settings := config(name)
	settings.Producer.Idempotent, settings.Net.MaxOpenRequests, settings.Producer.RequiredAcks = true, 1, sarama.WaitForAll
	settings.Producer.Transaction.ID = name
	producer, err := sarama.NewSyncProducer(servers, settings)
	check(err, "a producer")
	for _, one := range []struct {
		value string
		end   func() error
	}{{"a", producer.CommitTxn}, {"b", producer.AbortTxn}, {"c", producer.CommitTxn}} {
		check(producer.BeginTxn(), "begin")
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: name, Value: sarama.StringEncoder(one.value)})
		check(err, "Produce")
		offsets := map[string][]*sarama.PartitionOffsetMetadata{name: {{Partition: 0, Offset: 1}}}
		check(producer.AddOffsetsToTxn(offsets, name), "AddOffsetsToTxn")
		check(one.end(), "EndTxn")
	}
	audit := config(name)
	audit.Consumer.IsolationLevel = sarama.ReadCommitted
	expect(strings.Join(saramaRead(ctx, servers, audit, name+"-audit", name, 2), " "), "a c", "committed values")
}

func saramaAdmin(_ context.Context, servers []string, name string) {
	calls := saramaTopic(servers, name, 1)
	check(calls.CreatePartitions(name, 2, nil, false), "CreatePartitions")
	setting := "5000"
	changes := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &setting},
	}
	check(calls.IncrementalAlterConfig(sarama.TopicResource, name, changes, false), "IncrementalAlterConfigs")
	check(calls.AlterConfig(sarama.TopicResource, name, map[string]*string{"retention.ms": &setting}, false), "AlterConfigs")
	wanted := sarama.ConfigResource{Type: sarama.TopicResource, Name: name, ConfigNames: []string{"retention.ms"}}
	eventually(setting, "retention.ms", func() string {
		entries, err := calls.DescribeConfig(wanted)
		check(err, "DescribeConfigs")
		return entries[0].Value
	})
	_, _, err := calls.DescribeCluster()
	check(err, "Metadata")
	check(calls.DeleteRecords(name, map[int32]int64{0: 0}), "DeleteRecords")
	check(calls.DeleteTopic(name), "DeleteTopics")
}
