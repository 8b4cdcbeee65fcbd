// kafkago drives github.com/segmentio/kafka-go as ../sarama drives sarama. Arguments: bootstrap servers, a topic, the time in ms.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// The code of an error: its text is the broker's own.
func told(err error) any {
	var many kafka.WriteErrors
	if errors.As(err, &many) && len(many) == 1 {
		err = many[0]
	}
	var code kafka.Error
	if errors.As(err, &code) {
		return int(code)
	}
	return err
}

func main() {
	boot := strings.Split(os.Args[1], ",")
	ctx, stop := context.WithTimeout(context.Background(), 120*time.Second)
	defer stop()
	p := os.Args[2]
	now, _ := strconv.ParseInt(os.Args[3], 10, 64)
	c := &kafka.Client{Addr: kafka.TCP(boot...), Timeout: 20 * time.Second}
	cr, err := c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: p, NumPartitions: 3, ReplicationFactor: 1, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "cleanup.policy", ConfigValue: "compact"}}}}})
	fmt.Println("create", err, cr.Errors)
	cr, err = c.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: p, NumPartitions: 3, ReplicationFactor: 1}}})
	fmt.Println("create", err, cr.Errors)
	time.Sleep(time.Second)
	n := 0
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		w := &kafka.Writer{Addr: kafka.TCP(boot...), Topic: p, Compression: codec, RequiredAcks: kafka.RequireAll, Balancer: &kafka.Hash{}, BatchTimeout: 10 * time.Millisecond}
		ms := []kafka.Message{}
		for i := 0; i < 20; i++ {
			ms = append(ms, kafka.Message{Key: []byte(fmt.Sprintf("k%d", i)), Value: []byte(fmt.Sprintf("%v-%d", codec, i)), Time: time.UnixMilli(now + int64(n)), Headers: []kafka.Header{{Key: "h", Value: []byte(fmt.Sprint(codec))}}})
			n++
		}
		fmt.Println("write", codec, w.WriteMessages(ctx, ms...))
		err := w.WriteMessages(ctx, kafka.Message{Value: []byte("keyless")})
		fmt.Println("keyless", told(err))
		w.Close()
	}
	read := func(cfg kafka.ReaderConfig, count int) {
		cfg.Brokers = boot
		cfg.MaxWait = 200 * time.Millisecond
		r := kafka.NewReader(cfg)
		lines := []string{}
		for len(lines) < count {
			m, err := r.ReadMessage(ctx)
			if err != nil {
				fmt.Println("read", err)
				break
			}
			h := ""
			for _, x := range m.Headers {
				h += x.Key + "=" + string(x.Value)
			}
			lines = append(lines, fmt.Sprintf("   %s-%d@%d %s %s %s %d", m.Topic, m.Partition, m.Offset, m.Key, m.Value, h, m.Time.UnixMilli()))
		}
		fmt.Println("closed", r.Close())
		sort.Strings(lines)
		fmt.Println(strings.Join(lines, "\n"))
	}
	read(kafka.ReaderConfig{GroupID: "g-" + p, Topic: p, StartOffset: kafka.FirstOffset}, n)
	read(kafka.ReaderConfig{Topic: p, Partition: 1, StartOffset: kafka.FirstOffset}, 10)
	md, err := c.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{p, "none"}})
	fmt.Println("metadata", err)
	sort.Slice(md.Topics, func(i, j int) bool { return md.Topics[i].Name < md.Topics[j].Name })
	for _, t := range md.Topics {
		fmt.Println(" ", t.Name, t.Error, len(t.Partitions))
	}
	lo, err := c.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{p: {kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0), kafka.LastOffsetOf(1), kafka.TimeOffsetOf(2, time.UnixMilli(now+50))}}})
	fmt.Println("offsets", err)
	rows := lo.Topics[p]
	sort.Slice(rows, func(i, j int) bool { return rows[i].Partition < rows[j].Partition })
	for _, o := range rows {
		fmt.Println(" ", o.Partition, o.FirstOffset, o.LastOffset, o.Offsets, o.Error)
	}
	of, err := c.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: "g-" + p, Topics: map[string][]int{p: {0, 1, 2}}})
	committed := of.Topics[p]
	sort.Slice(committed, func(i, j int) bool { return committed[i].Partition < committed[j].Partition })
	fmt.Println("fetched", err, committed, of.Error)
	lg, err := c.ListGroups(ctx, &kafka.ListGroupsRequest{})
	found := false
	for _, g := range lg.Groups {
		found = found || g.GroupID == "g-"+p
	}
	fmt.Println("groups", err, found, lg.Error)
	dg, err := c.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{"g-" + p, "none"}})
	fmt.Println("describe", err)
	sort.Slice(dg.Groups, func(i, j int) bool { return dg.Groups[i].GroupID < dg.Groups[j].GroupID })
	for _, g := range dg.Groups {
		fmt.Println(" ", g.GroupID, g.GroupState, len(g.Members), g.Error)
	}
	dc, err := c.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: p, ConfigNames: []string{"cleanup.policy", "retention.ms"}}}, IncludeSynonyms: true, IncludeDocumentation: true})
	fmt.Println("configs", err)
	if err == nil {
		for _, r := range dc.Resources {
			sort.Slice(r.ConfigEntries, func(i, j int) bool { return r.ConfigEntries[i].ConfigName < r.ConfigEntries[j].ConfigName })
			for _, e := range r.ConfigEntries {
				fmt.Println(" ", e.ConfigName, e.ConfigValue, e.ConfigSource, e.IsDefault, e.ConfigType, len(e.ConfigDocumentation))
			}
		}
	}
	ia, err := c.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: p, Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: "retention.ms", Value: "1000000", ConfigOperation: kafka.ConfigOperationSet}}}}})
	fmt.Println("alter", err, ia)
	cp, err := c.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: p, Count: 4}}})
	fmt.Println("partitions", err, cp)
	start := &kafka.InitProducerIDRequest{TransactionalID: "tx-" + p, TransactionTimeoutMs: 30000}
	ip, err := c.InitProducerID(ctx, start)
	// A coordinator that was never asked has to load first; this client leaves it to its user to ask again.
	for n := 0; n < 200 && err == nil && ip.Error != nil; n++ {
		time.Sleep(100 * time.Millisecond)
		ip, err = c.InitProducerID(ctx, start)
	}
	fmt.Println("init", err, ip.Error, ip.Producer.ProducerEpoch)
	if err == nil {
		at, err := c.AddPartitionsToTxn(ctx, &kafka.AddPartitionsToTxnRequest{TransactionalID: "tx-" + p, ProducerID: ip.Producer.ProducerID, ProducerEpoch: ip.Producer.ProducerEpoch, Topics: map[string][]kafka.AddPartitionToTxn{p: {{Partition: 0}}}})
		fmt.Println("add", err, at)
		et, err := c.EndTxn(ctx, &kafka.EndTxnRequest{TransactionalID: "tx-" + p, ProducerID: ip.Producer.ProducerID, ProducerEpoch: ip.Producer.ProducerEpoch, Committed: true})
		fmt.Println("end", err, et)
	}
	ao, err := c.AlterClientQuotas(ctx, &kafka.AlterClientQuotasRequest{Entries: []kafka.AlterClientQuotaEntry{{Entities: []kafka.AlterClientQuotaEntity{{EntityType: "user", EntityName: "seg"}}, Ops: []kafka.AlterClientQuotaOps{{Key: "producer_byte_rate", Value: 1e6}}}}})
	fmt.Println("quota", err, ao != nil && len(ao.Entries) == 1 && ao.Entries[0].Error == nil)
	el, err := c.ElectLeaders(ctx, &kafka.ElectLeadersRequest{Topic: p, Partitions: []int{0}, Timeout: time.Second})
	fmt.Println("elect", err, el)
	lp, err := c.ListPartitionReassignments(ctx, &kafka.ListPartitionReassignmentsRequest{Topics: map[string]kafka.ListPartitionReassignmentsRequestTopic{p: {PartitionIndexes: []int{0}}}, Timeout: time.Second})
	fmt.Println("reassign", err, lp)
	da, err := c.DescribeACLs(ctx, &kafka.DescribeACLsRequest{Filter: kafka.ACLFilter{ResourceTypeFilter: kafka.ResourceTypeTopic, ResourcePatternTypeFilter: kafka.PatternTypeAny, Operation: kafka.ACLOperationTypeAny, PermissionType: kafka.ACLPermissionTypeAny}})
	fmt.Println("acls", err, da)
	dl, err := c.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{"g-" + p, "none"}})
	fmt.Println("delete groups", err, dl.Errors)
	conn, err := kafka.DialLeader(ctx, "tcp", boot[0], p, 2)
	if err == nil {
		_, err = conn.WriteMessages(kafka.Message{Key: []byte("a"), Value: []byte("b"), Time: time.UnixMilli(now)})
		f, l, e := conn.ReadOffsets()
		b, e2 := conn.Brokers()
		fmt.Println("conn", err, f, l, e, len(b) > 0, e2)
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		ba := conn.ReadBatch(1, 1e6)
		m, e := ba.ReadMessage()
		fmt.Println("conn", string(m.Key), m.Offset, e, ba.Close())
		vs, e := conn.ApiVersions()
		fmt.Println("versions", len(vs) > 50, e)
		conn.Close()
	} else {
		fmt.Println("conn", err)
	}
	dt, err := c.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{p, "none"}})
	fmt.Println("delete", err)
	for _, k := range []string{p, "none"} {
		fmt.Println(" ", k, dt.Errors[k], errors.Is(dt.Errors[k], kafka.UnknownTopicOrPartition))
	}
}
