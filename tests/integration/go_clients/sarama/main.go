// sarama produces with every codec, reads as a member of a group, sends in transactions and administrates; it prints what it is
// told. Arguments: bootstrap servers, the version of Kafka that it shall take the broker for, a topic, the time in ms.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func check(what string, err error) bool {
	if err != nil {
		fmt.Printf("%s: ERROR %v\n", what, err)
		return false
	}
	return true
}

type member struct {
	want  int
	lines []string
	mu    sync.Mutex
	done  context.CancelFunc
}

func (m *member) Setup(s sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(s sarama.ConsumerGroupSession) error { return nil }
func (m *member) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for {
		select {
		case r, ok := <-c.Messages():
			if !ok {
				return nil
			}
			h := ""
			for _, x := range r.Headers {
				h += string(x.Key) + "=" + string(x.Value) + ","
			}
			m.mu.Lock()
			m.lines = append(m.lines, fmt.Sprintf("%s-%d %s %s %s %d", r.Topic, r.Partition, r.Key, r.Value, h, r.Timestamp.UnixMilli()))
			s.MarkMessage(r, "")
			if len(m.lines) == m.want {
				s.Commit()
				m.done()
			}
			m.mu.Unlock()
		case <-s.Context().Done():
			return nil
		}
	}
}

func conf(v sarama.KafkaVersion) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = v
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Partitioner = sarama.NewHashPartitioner
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	return c
}

func group(boot []string, c *sarama.Config, topic, g string, want int) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	cg, err := sarama.NewConsumerGroup(boot, g, c)
	if !check("group", err) {
		return
	}
	m := &member{want: want, done: cancel}
	for ctx.Err() == nil {
		if !check("consume", cg.Consume(ctx, []string{topic}, m)) {
			break
		}
	}
	check("close", cg.Close())
	sort.Strings(m.lines)
	fmt.Println(g, "read", len(m.lines))
	for _, l := range m.lines {
		fmt.Println("  ", l)
	}
}

func main() {
	boot := strings.Split(os.Args[1], ",")
	ver := os.Args[2]
	v, _ := sarama.ParseKafkaVersion(ver)
	p := os.Args[3]
	now, _ := strconv.ParseInt(os.Args[4], 10, 64)
	c := conf(v)
	admin, err := sarama.NewClusterAdmin(boot, c)
	if !check("admin", err) {
		return
	}
	policy := "compact"
	check("create", admin.CreateTopic(p, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1, ConfigEntries: map[string]*string{"cleanup.policy": &policy}}, false))
	fmt.Println("again:", admin.CreateTopic(p, &sarama.TopicDetail{NumPartitions: 3, ReplicationFactor: 1}, false))
	time.Sleep(time.Second)
	cl, _ := sarama.NewClient(boot, c)
	n := 0
	for _, codec := range []sarama.CompressionCodec{sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD} {
		cc := conf(v)
		cc.Producer.Compression = codec
		if codec == sarama.CompressionZSTD && !v.IsAtLeast(sarama.V2_1_0_0) {
			continue
		}
		pr, err := sarama.NewSyncProducer(boot, cc)
		if !check("producer", err) {
			continue
		}
		ms := []*sarama.ProducerMessage{}
		for i := 0; i < 20; i++ {
			m := &sarama.ProducerMessage{Topic: p, Key: sarama.StringEncoder(fmt.Sprintf("k%d", i)), Value: sarama.StringEncoder(fmt.Sprintf("%v-%d", codec, i)), Timestamp: time.UnixMilli(now + int64(n))}
			if v.IsAtLeast(sarama.V0_11_0_0) {
				m.Headers = []sarama.RecordHeader{{Key: []byte("h"), Value: []byte(codec.String())}}
			}
			ms = append(ms, m)
			n++
		}
		check("send "+codec.String(), pr.SendMessages(ms))
		_, _, err = pr.SendMessage(&sarama.ProducerMessage{Topic: p, Value: sarama.StringEncoder("keyless")})
		fmt.Println("keyless:", err)
		check("close", pr.Close())
	}
	group(boot, c, p, "g-"+p, n)
	if v.IsAtLeast(sarama.V0_11_0_0) {
		cc := conf(v)
		cc.Producer.Idempotent = true
		cc.Net.MaxOpenRequests = 1
		pr, err := sarama.NewSyncProducer(boot, cc)
		if check("idempotent", err) {
			for i := 0; i < 5; i++ {
				_, o, err := pr.SendMessage(&sarama.ProducerMessage{Topic: p, Key: sarama.StringEncoder("same"), Value: sarama.StringEncoder("v"), Timestamp: time.UnixMilli(now)})
				fmt.Println("idempotent", o, err)
			}
			pr.Close()
		}
		cc = conf(v)
		cc.Producer.Idempotent = true
		cc.Net.MaxOpenRequests = 1
		cc.Producer.Transaction.ID = "tx-" + p
		cc.Producer.Transaction.Timeout = 10 * time.Second
		tp, err := sarama.NewSyncProducer(boot, cc)
		if check("transactional", err) {
			for _, commit := range []bool{true, false, true} {
				check("begin", tp.BeginTxn())
				_, o, err := tp.SendMessage(&sarama.ProducerMessage{Topic: p, Key: sarama.StringEncoder("tx"), Value: sarama.StringEncoder(fmt.Sprint(commit)), Timestamp: time.UnixMilli(now)})
				fmt.Println("tx", o, err)
				check("offsets", tp.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{p: {{Partition: 0, Offset: 3}}}, "txg-"+p))
				if commit {
					check("commit", tp.CommitTxn())
				} else {
					check("abort", tp.AbortTxn())
				}
			}
			tp.Close()
			rc := conf(v)
			rc.Consumer.IsolationLevel = sarama.ReadCommitted
			group(boot, rc, p, "gtx-"+p, n+5+2)
		}
	}
	topics, err := admin.ListTopics()
	check("list", err)
	fmt.Println("topic", topics[p].NumPartitions, topics[p].ReplicationFactor, len(topics[p].ConfigEntries))
	md, err := admin.DescribeTopics([]string{p, "none-" + p})
	check("describe", err)
	sort.Slice(md, func(i, j int) bool { return md[i].Name < md[j].Name })
	for _, t := range md {
		fmt.Println("described", t.Name, t.Err, len(t.Partitions), t.IsInternal)
	}
	cfg, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: p})
	check("config", err)
	sort.Slice(cfg, func(i, j int) bool { return cfg[i].Name < cfg[j].Name })
	for _, e := range cfg {
		fmt.Println("config", e.Name, e.Value, e.Source, e.Default, e.ReadOnly, e.Sensitive)
	}
	changed := "1000000000"
	check("alter", admin.AlterConfig(sarama.TopicResource, p, map[string]*string{"cleanup.policy": &policy, "segment.ms": &changed}, false))
	if v.IsAtLeast(sarama.V2_3_0_0) {
		check("incremental", admin.IncrementalAlterConfig(sarama.TopicResource, p, map[string]sarama.IncrementalAlterConfigsEntry{"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &changed}}, false))
	}
	check("partitions", admin.CreatePartitions(p, 5, nil, false))
	groups, err := admin.ListConsumerGroups()
	check("groups", err)
	fmt.Println("group listed", groups["g-"+p])
	d, err := admin.DescribeConsumerGroups([]string{"g-" + p, "none-" + p})
	check("describe groups", err)
	sort.Slice(d, func(i, j int) bool { return d[i].GroupId < d[j].GroupId })
	for _, g := range d {
		fmt.Println("group", g.GroupId, g.State, g.ProtocolType, g.Protocol, g.Err, len(g.Members))
	}
	off, err := admin.ListConsumerGroupOffsets("g-"+p, map[string][]int32{p: {0, 1, 2}})
	if check("offsets", err) {
		for _, i := range []int32{0, 1, 2} {
			b := off.GetBlock(p, i)
			fmt.Println("offset", i, b.Offset, b.Err)
		}
	}
	for _, at := range []int64{sarama.OffsetNewest, sarama.OffsetOldest, now + 50} {
		for i := int32(0); i < 3; i++ {
			o, err := cl.GetOffset(p, i, at)
			fmt.Println("offset", i, o, err)
		}
	}
	fmt.Println("delete records", admin.DeleteRecords(p, map[int32]int64{0: 2}))
	fmt.Println("delete offset", admin.DeleteConsumerGroupOffset("g-"+p, p, 0))
	fmt.Println("delete group", admin.DeleteConsumerGroup("g-"+p), admin.DeleteConsumerGroup("none-"+p))
	dirs, err := admin.DescribeLogDirs([]int32{1})
	fmt.Println("dirs", len(dirs[1]), err)
	_, controller, err := admin.DescribeCluster()
	fmt.Println("cluster", controller, err)
	_, err = admin.ListAcls(sarama.AclFilter{ResourceType: sarama.AclResourceTopic, ResourcePatternTypeFilter: sarama.AclPatternAny, PermissionType: sarama.AclPermissionAny, Operation: sarama.AclOperationAny})
	fmt.Println("acls", err)
	_, err = admin.DescribeUserScramCredentials([]string{"x"})
	fmt.Println("scram", err)
	_, err = admin.DescribeClientQuotas([]sarama.QuotaFilterComponent{}, false)
	fmt.Println("quotas", err)
	check("delete", admin.DeleteTopic(p))
	fmt.Println("again:", admin.DeleteTopic("none-"+p))
	check("close", admin.Close())
	cl.Close()
}
