// Franz reports, a line of JSON at a time, how long franz-go's sticky balancers take.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sort"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type member struct {
	ID     string   `json:"id"`
	Topics []string `json:"topics"`
}

// A question describes a group, changes the previous one by its last plan's history, or requests one more run.
type question struct {
	Balancer   string           `json:"balancer"`
	Partitions map[string]int32 `json:"partitions"`
	Members    []member         `json:"members"`
	Leave      string           `json:"leave"`
	Join       *member          `json:"join"`
	Run        bool             `json:"run"`
}

// Times are wall-clock time and this thread's processor time, which excludes the garbage collector's threads.
type answer struct {
	BalanceNs    int64 `json:"balance_ns"`
	EncodeNs     int64 `json:"encode_ns"`
	BalanceCPUNs int64 `json:"balance_cpu_ns"`
	EncodeCPUNs  int64 `json:"encode_cpu_ns"`
	Bytes        int   `json:"bytes"`
	Moves        int   `json:"moves"`
}

type group struct {
	balancer   kgo.GroupBalancer
	partitions map[string]int32
	members    []member
	owned      map[string]map[string][]int32
	joined     []kmsg.JoinGroupResponseMember
	generation int32
}

func (g *group) join() {
	sort.Slice(g.members, func(i, j int) bool { return g.members[i].ID < g.members[j].ID })
	g.joined = g.joined[:0]
	for _, m := range g.members {
		joined := kmsg.NewJoinGroupResponseMember()
		joined.MemberID = m.ID
		topics := append([]string(nil), m.Topics...)
		sort.Strings(topics)
		owned := g.owned[m.ID]
		for _, partitions := range owned {
			sort.Slice(partitions, func(i, j int) bool { return partitions[i] < partitions[j] })
		}
		joined.ProtocolMetadata = g.balancer.JoinGroupMetadata(topics, owned, g.generation)
		g.joined = append(g.joined, joined)
	}
}

func (g *group) run() (answer, map[string]map[string][]int32, error) {
	balancer, _, err := g.balancer.MemberBalancer(g.joined)
	if err != nil {
		return answer{}, nil, err
	}
	start, startCPU := time.Now(), threadTime()
	into, err := balancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(g.partitions)
	if err != nil {
		return answer{}, nil, err
	}
	balanced, balancedCPU := time.Now(), threadTime()
	encoded := into.IntoSyncAssignment()
	result := answer{
		BalanceNs:    balanced.Sub(start).Nanoseconds(),
		EncodeNs:     time.Since(balanced).Nanoseconds(),
		BalanceCPUNs: balancedCPU - startCPU,
		EncodeCPUNs:  threadTime() - balancedCPU,
	}
	for _, one := range encoded {
		result.Bytes += len(one.MemberAssignment)
	}
	plan := into.(*kgo.BalancePlan).AsMemberIDMap()
	for id, owned := range g.owned {
		if given, stays := plan[id]; stays {
			result.Moves += lost(owned, given)
		}
	}
	return result, plan, nil
}

func lost(owned, given map[string][]int32) int {
	count := 0
	for topic, partitions := range owned {
		has := make(map[int32]bool, len(given[topic]))
		for _, partition := range given[topic] {
			has[partition] = true
		}
		for _, partition := range partitions {
			if !has[partition] {
				count++
			}
		}
	}
	return count
}

func (g *group) answer(q question) (answer, error) {
	switch {
	case q.Run:
		result, _, err := g.run()
		return result, err
	case q.Join != nil:
		_, plan, err := g.run()
		if err != nil {
			return answer{}, err
		}
		g.owned = plan
		delete(g.owned, q.Leave)
		stay := []member{*q.Join}
		for _, m := range g.members {
			if m.ID != q.Leave {
				stay = append(stay, m)
			}
		}
		g.members = stay
		g.generation = 1
	default:
		g.balancer = kgo.CooperativeStickyBalancer()
		if q.Balancer == "sticky" {
			g.balancer = kgo.StickyBalancer()
		}
		g.partitions, g.members, g.owned, g.generation = q.Partitions, q.Members, nil, -1
	}
	g.join()
	return answer{}, nil
}

// threadTime is the processor time of this thread in nanoseconds.
func threadTime() int64 {
	const clockThreadCPUTime = 3
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockThreadCPUTime, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

func main() {
	runtime.LockOSThread()
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	decoder := json.NewDecoder(in)
	encoder := json.NewEncoder(os.Stdout)
	var g group
	for decoder.More() {
		var q question
		err := decoder.Decode(&q)
		var result answer
		if err == nil {
			result, err = g.answer(q)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := encoder.Encode(result); err != nil {
			os.Exit(1)
		}
	}
}
