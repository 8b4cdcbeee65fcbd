package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// named tells an error by its name in the protocol.
func named(err error) string {
	var e *kerr.Error
	if err == nil {
		return "ok"
	}
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// Calls of kadm on a topic of three partitions with ten records each and on a group that has read them.
func administrate(ctx context.Context, q *request, answer map[string]any) error {
	client, err := kgo.NewClient(options(q)...)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	said := []string{}
	note := func(format string, rest ...any) { said = append(said, fmt.Sprintf(format, rest...)) }

	second := q.Topic + "-a"
	text := func(s string) *string { return &s }
	for _, name := range []string{second, q.Topic, "bad name"} {
		_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": text("100000")}, name)
		note("create %s: %s", name, named(err))
	}
	_, err = admin.CreateTopic(ctx, 1, 2, nil, q.Topic+"-b")
	note("two replicas: %s", named(err))
	_, err = admin.CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": text("shred")}, q.Topic+"-c")
	note("bad setting: %s", named(err))
	if err := until(ctx, func() bool {
		topics, err := admin.ListTopics(ctx)
		return err == nil && topics.Has(second) && len(topics[second].Partitions) == 2
	}); err != nil {
		return err
	}
	configs, err := admin.DescribeTopicConfigs(ctx, second)
	if err != nil {
		return err
	}
	for _, resource := range configs {
		rows := []string{}
		for _, each := range resource.Configs {
			rows = append(rows, fmt.Sprintf("%s=%s %d", each.Key, each.MaybeValue(), each.Source))
		}
		sort.Strings(rows)
		note("configs: %s", strings.Join(rows, ", "))
	}
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "segment.ms", Value: text("90000")}}, second, q.Topic+"-no")
	if err != nil {
		return err
	}
	for _, name := range []string{second, q.Topic + "-no"} {
		one, _ := altered.On(name, nil)
		note("alter %s: %s", name, named(one.Err))
	}
	grown, err := admin.UpdatePartitions(ctx, 4, second, q.Topic+"-no")
	if err != nil {
		return err
	}
	for _, one := range grown.Sorted() {
		note("grow %s: %s", one.Topic, named(one.Err))
	}
	for what, list := range map[string]func(context.Context, ...string) (kadm.ListedOffsets, error){
		"starts": admin.ListStartOffsets, "ends": admin.ListEndOffsets, "committed": admin.ListCommittedOffsets, "max": admin.ListMaxTimestampOffsets,
	} {
		found, err := list(ctx, q.Topic)
		if err != nil {
			return err
		}
		rows := []string{}
		found.Each(func(each kadm.ListedOffset) {
			rows = append(rows, fmt.Sprintf("%d=%d %s", each.Partition, each.Offset, named(each.Err)))
		})
		sort.Strings(rows)
		note("%s: %s", what, strings.Join(rows, ", "))
	}
	sort.Strings(said[len(said)-4:])
	before := kadm.Offsets{}
	before.AddOffset(q.Topic, 0, 4, -1)
	before.AddOffset(q.Topic, 1, 99, -1)
	deleted, err := admin.DeleteRecords(ctx, before)
	if err != nil {
		return err
	}
	for _, one := range deleted.Sorted() {
		note("delete records %d: %d %s", one.Partition, one.LowWatermark, named(one.Err))
	}
	groups, err := admin.DescribeGroups(ctx, q.Group, "g-none")
	if err != nil {
		return err
	}
	for _, one := range groups.Sorted() {
		note("group %s: %s %s %d %s", one.Group, one.State, one.Protocol, len(one.Members), named(one.Err))
	}
	lags, err := admin.Lag(ctx, q.Group)
	if err != nil {
		return err
	}
	for _, one := range lags.Sorted() {
		for _, each := range one.Lag.Sorted() {
			note("lag of %d: %d %d", each.Partition, each.Commit.At, each.Lag)
		}
	}
	set := kadm.Offsets{}
	set.AddOffset(q.Topic, 2, 1, -1)
	note("set offsets: %s", named(admin.CommitAllOffsets(ctx, q.Group, set)))
	_, err = admin.DeleteOffsets(ctx, q.Group, set.TopicsSet())
	note("delete offsets: %s", named(err))
	_, err = admin.DeleteGroup(ctx, q.Group)
	note("delete group: %s", named(err))
	_, err = admin.DeleteGroup(ctx, "g-none")
	note("delete no group: %s", named(err))
	dirs, err := admin.DescribeAllLogDirs(ctx, set.TopicsSet())
	if err != nil {
		return err
	}
	size, partitions := int64(0), 0
	dirs.Each(func(dir kadm.DescribedLogDir) {
		dir.Topics.Each(func(each kadm.DescribedLogDirPartition) { size += each.Size; partitions++ })
	})
	// How many bytes they are depends on how the client happened to batch its records.
	note("log dirs: %d %t", partitions, size > 0)
	versions, err := admin.ApiVersions(ctx)
	if err != nil {
		return err
	}
	note("brokers: %d", len(versions.Sorted()))
	gone, err := admin.DeleteTopics(ctx, q.Topic, second, q.Topic+"-no")
	if err != nil {
		return err
	}
	for _, one := range gone.Sorted() {
		note("delete %s: %s", one.Topic, named(one.Err))
	}
	sort.Strings(said[len(said)-3:])
	answer["said"] = said
	return nil
}

func until(ctx context.Context, right func() bool) error {
	for !right() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}
