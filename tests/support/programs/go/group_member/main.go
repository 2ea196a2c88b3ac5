// A member of a consumer group, of franz-go; see tests/support/members.py for what it reads and writes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type setup struct {
	Config    map[string]any `json:"config"`
	Topics    []string       `json:"topics"`
	Assignors []string       `json:"assignors"`
}

type command struct {
	Name string `json:"command"`
	ID   int    `json:"id"`
}

type object = map[string]any

var (
	output sync.Mutex
	began  = time.Now()
)

func emit(event string, fields object) {
	fields["event"] = event
	fields["at_ns"] = time.Since(began).Nanoseconds()
	line, err := json.Marshal(fields)
	check(err)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func text(config map[string]any, name string) string {
	value, found := config[name]
	if !found {
		return ""
	}
	return fmt.Sprint(value)
}

func duration(config map[string]any, name string) (time.Duration, bool) {
	milliseconds, found := config[name].(float64)
	return time.Duration(milliseconds) * time.Millisecond, found
}

func changed(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(ctx context.Context, client *kgo.Client, partitions map[string][]int32) {
		if event == "revoked" {
			// As franz-go's own default does where it commits automatically.
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				emit("error", object{"error": err.Error()})
			}
		}
		_, generation := client.GroupMetadata()
		emit(event, object{"partitions": partitions, "generation": generation})
	}
}

func options(member setup) []kgo.Opt {
	config := member.Config
	made := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(text(config, "bootstrap.servers"), ",")...),
		kgo.ConsumerGroup(text(config, "group.id")),
		kgo.ConsumeTopics(member.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(changed("assigned")),
		kgo.OnPartitionsRevoked(changed("revoked")),
		kgo.OnPartitionsLost(changed("lost")),
		// What a poll returned is reported before another member can have its partition.
		kgo.BlockRebalanceOnPoll(),
	}
	if text(config, "enable.auto.commit") != "true" {
		made = append(made, kgo.DisableAutoCommit())
	} else if interval, found := duration(config, "auto.commit.interval.ms"); found {
		made = append(made, kgo.AutoCommitInterval(interval))
	}
	if text(config, "group.protocol") == "consumer" {
		// franz-go asks the broker for "uniform" then.
		return append(made, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	if timeout, found := duration(config, "session.timeout.ms"); found {
		made = append(made, kgo.SessionTimeout(timeout))
	}
	if interval, found := duration(config, "heartbeat.interval.ms"); found {
		made = append(made, kgo.HeartbeatInterval(interval))
	}
	balancers := map[string]kgo.GroupBalancer{
		"range":              kgo.RangeBalancer(),
		"roundrobin":         kgo.RoundRobinBalancer(),
		"sticky":             kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	var chosen []kgo.GroupBalancer
	for _, name := range member.Assignors {
		chosen = append(chosen, balancers[name])
	}
	return append(made, kgo.Balancers(chosen...))
}

func report(client *kgo.Client, fetches kgo.Fetches, total int) {
	ranges := map[string]map[string][3]int64{}
	fetches.EachPartition(func(partition kgo.FetchTopicPartition) {
		if count := len(partition.Records); count > 0 {
			if ranges[partition.Topic] == nil {
				ranges[partition.Topic] = map[string][3]int64{}
			}
			first, last := partition.Records[0].Offset, partition.Records[count-1].Offset
			ranges[partition.Topic][strconv.Itoa(int(partition.Partition))] = [3]int64{first, last, int64(count)}
		}
	})
	_, generation := client.GroupMetadata()
	emit("records", object{"ranges": ranges, "total": total, "generation": generation})
}

func main() {
	var member setup
	check(json.Unmarshal([]byte(os.Args[1]), &member))
	client, err := kgo.NewClient(options(member)...)
	check(err)
	emit("ready", object{})
	commands := make(chan command)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var next command
			check(json.Unmarshal(lines.Bytes(), &next))
			commands <- next
		}
		close(commands)
	}()
	total := 0
	for {
		select {
		case next, open := <-commands:
			if open && next.Name != "close" {
				emit("answer", object{"id": next.ID, "error": "unknown command " + next.Name})
				continue
			}
			// Closing waits for the callbacks of what is revoked.
			client.CloseAllowingRebalance()
			if open {
				emit("answer", object{"id": next.ID})
			}
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := client.PollFetches(ctx)
		cancel()
		for _, problem := range fetches.Errors() {
			if problem.Err != context.DeadlineExceeded {
				emit("error", object{"error": problem.Err.Error()})
			}
		}
		if count := fetches.NumRecords(); count > 0 {
			total += count
			report(client, fetches, total)
		}
		client.AllowRebalance()
	}
}
