// Operations of franz-go, its kadm, and Sarama with a Kafka: the arguments are the operation, the bootstrap servers, and a name
// that no other run has. The last line of standard error is the reason of a failure.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	count      = 300
	partitions = 3
	waiting    = 45 * time.Second
)

type operation func(ctx context.Context, servers []string, name string)

var operations = map[string]operation{}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*waiting)
	defer cancel()
	run, found := operations[os.Args[1]]
	if !found {
		fail("there is no operation %s", os.Args[1])
	}
	run(ctx, strings.Split(os.Args[2], ","), os.Args[3])
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(1)
}

func check(err error, doing string) {
	if err != nil {
		fail("%s: %v", doing, err)
	}
}

func expect[T comparable](found, expected T, what string) {
	if found != expected {
		fail("%s: %v, expected %v", what, found, expected)
	}
}

// What an administrator changes, Kafka's brokers know a little later.
func eventually[T comparable](expected T, what string, found func() T) {
	until := time.Now().Add(waiting)
	for last := found(); last != expected; last = found() {
		if time.Now().After(until) {
			fail("%s: %v, expected %v", what, last, expected)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func value(number int) string {
	return fmt.Sprintf("%d", number)
}
