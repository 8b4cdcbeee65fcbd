// franz drives franz-go: a JSON object a request on stdin, one an answer on stdout (clients.py has the other end).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// A record, in requests and in answers; null keys and values are nil. Times are ms; 0 asks for the client's clock.
type record struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
}

type request struct {
	Op        string   `json:"op"`
	Bootstrap string   `json:"bootstrap"`
	Topic     string   `json:"topic"`
	Codec     string   `json:"codec"`
	Acks      int      `json:"acks"`
	Plain     bool     `json:"plain"` // without idempotence
	Records   []record `json:"records"`
	// Transactions: the id, and "commit" or "abort".
	TransactionalID string `json:"transactional_id"`
	End             string `json:"end"`
	Isolation       string `json:"isolation"`
	// Groups.
	Group  string `json:"group"`
	Server bool   `json:"server_side"` // KIP-848
	Count  int    `json:"count"`
	Into   string `json:"into"`
}

// An error of the protocol by its number; any other as -1.
type failure struct {
	Code    int16  `json:"code"`
	Message string `json:"message"`
}

func told(err error) *failure {
	var e *kerr.Error
	if errors.As(err, &e) {
		return &failure{e.Code, e.Message}
	}
	return &failure{-1, err.Error()}
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var q request
		answer := map[string]any{}
		if err := json.Unmarshal(line, &q); err != nil {
			answer["error"] = told(err)
		} else if err := serve(&q, answer); err != nil {
			answer = map[string]any{"error": told(err)}
		}
		if err := out.Encode(answer); err != nil {
			return
		}
	}
}

func serve(q *request, answer map[string]any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	switch q.Op {
	case "produce":
		return produce(ctx, q, answer)
	case "consume":
		return consume(ctx, q, answer)
	case "group":
		return group(ctx, q, answer)
	case "transform":
		return transform(ctx, q, answer)
	case "administrate":
		return administrate(ctx, q, answer)
	default:
		return fmt.Errorf("unknown op %q", q.Op)
	}
}

func options(q *request, more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{kgo.SeedBrokers(strings.Split(q.Bootstrap, ",")...), kgo.ClientID("franz"), kgo.RetryTimeout(60 * time.Second)}, more...)
}

func producing(q *request) []kgo.Opt {
	made := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[q.Codec]), kgo.ProducerBatchMaxBytes(8 << 20), kgo.BrokerMaxWriteBytes(64 << 20),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	switch q.Acks {
	case 0:
		made = append(made, kgo.RequiredAcks(kgo.NoAck()))
	case 1:
		made = append(made, kgo.RequiredAcks(kgo.LeaderAck()))
	}
	if q.Plain || q.Acks != -1 {
		made = append(made, kgo.DisableIdempotentWrite())
	}
	if q.TransactionalID != "" {
		made = append(made, kgo.TransactionalID(q.TransactionalID))
	}
	return made
}

func native(topic string, r record) *kgo.Record {
	made := &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
	if r.Timestamp != 0 {
		made.Timestamp = time.UnixMilli(r.Timestamp)
	}
	for _, h := range r.Headers {
		made.Headers = append(made.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return made
}

func ours(r *kgo.Record) record {
	made := record{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value,
		Headers: []header{},
	}
	for _, h := range r.Headers {
		made.Headers = append(made.Headers, header{h.Key, h.Value})
	}
	return made
}

// Offsets, or what a record was refused with, in the order of the records.
func produce(ctx context.Context, q *request, answer map[string]any) error {
	client, err := kgo.NewClient(options(q, producing(q)...)...)
	if err != nil {
		return err
	}
	defer client.Close()
	if q.TransactionalID != "" {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
	}
	outcomes := make([]any, len(q.Records))
	var all sync.WaitGroup
	for i, r := range q.Records {
		all.Add(1)
		client.Produce(ctx, native(q.Topic, r), func(r *kgo.Record, err error) {
			defer all.Done()
			if err != nil {
				outcomes[i] = told(err)
			} else {
				outcomes[i] = r.Offset
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	all.Wait()
	answer["offsets"] = outcomes
	switch q.End {
	case "commit":
		return client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		return client.EndTransaction(ctx, kgo.TryAbort)
	}
	return nil
}

// Every record of a topic, to the offsets that are the ends when it begins.
func consume(ctx context.Context, q *request, answer map[string]any) error {
	probe, err := kgo.NewClient(options(q)...)
	if err != nil {
		return err
	}
	defer probe.Close()
	admin := kadm.NewClient(probe)
	starts, err := admin.ListStartOffsets(ctx, q.Topic)
	if err != nil {
		return err
	}
	list, level := admin.ListEndOffsets, kgo.ReadUncommitted()
	if q.Isolation == "read_committed" {
		list, level = admin.ListCommittedOffsets, kgo.ReadCommitted()
	}
	ends, err := list(ctx, q.Topic)
	if err != nil {
		return err
	}
	if err := errors.Join(starts.Error(), ends.Error()); err != nil {
		return err
	}
	open := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(q.Topic, end.Partition)
		if start.Offset < end.Offset {
			open[end.Partition] = end.Offset
			from[end.Partition] = kgo.NewOffset().At(start.Offset)
		}
	})
	records := []record{}
	if len(open) > 0 {
		client, err := kgo.NewClient(options(q, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{q.Topic: from}),
			kgo.FetchIsolationLevel(level), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))...)
		if err != nil {
			return err
		}
		defer client.Close()
		for len(open) > 0 {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return err
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if !r.Attrs.IsControl() {
					records = append(records, ours(r))
				}
				if end, reads := open[r.Partition]; reads && r.Offset+1 >= end {
					delete(open, r.Partition)
				}
			})
		}
	}
	answer["records"] = records
	return nil
}

func member(q *request, more ...kgo.Opt) []kgo.Opt {
	made := append([]kgo.Opt{
		kgo.ConsumerGroup(q.Group), kgo.ConsumeTopics(q.Topic), kgo.DisableAutoCommit(), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}, more...)
	if q.Server {
		made = append(made, kgo.ServerSideBalancer())
	}
	return made
}

// So many records as a member of a group, which commits them and leaves.
func group(ctx context.Context, q *request, answer map[string]any) error {
	client, err := kgo.NewClient(options(q, member(q)...)...)
	if err != nil {
		return err
	}
	defer client.Close()
	records := []record{}
	for len(records) < q.Count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { records = append(records, ours(r)) })
	}
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		return err
	}
	answer["records"] = records
	return client.LeaveGroupContext(ctx)
}

// Reads so many records as a member of a group, and writes them to another topic, offsets and records in one transaction.
func transform(ctx context.Context, q *request, answer map[string]any) error {
	q.Codec, q.Acks = "none", -1
	session, err := kgo.NewGroupTransactSession(options(q, member(q, producing(q)...)...)...)
	if err != nil {
		return err
	}
	defer session.Close()
	moved := 0
	for moved < q.Count {
		fetches := session.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Topic: q.Into, Partition: r.Partition, Key: r.Key, Value: r.Value}, nil)
		})
		// An abort drops what has not been sent.
		if err := session.Client().Flush(ctx); err != nil {
			return err
		}
		committed, err := session.End(ctx, kgo.TransactionEndTry(q.End == "commit"))
		if err != nil {
			return err
		}
		if committed || q.End != "commit" {
			moved += fetches.NumRecords()
		}
	}
	answer["moved"] = moved
	return nil
}
