package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Proxy;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.errors.FencedMemberEpochException;
import org.apache.kafka.common.message.StreamsGroupDescribeResponseData;
import org.apache.kafka.common.message.StreamsGroupDescribeResponseDataJsonConverter;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.generated.StreamsGroupTopologyValueJsonConverter;
import org.apache.kafka.coordinator.group.streams.CurrentAssignmentBuilder;
import org.apache.kafka.coordinator.group.streams.MemberState;
import org.apache.kafka.coordinator.group.streams.StreamsGroupMember;
import org.apache.kafka.coordinator.group.streams.StreamsTopology;
import org.apache.kafka.coordinator.group.streams.TasksTuple;
import org.apache.kafka.coordinator.group.streams.TasksTupleWithEpochs;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.topics.InternalTopicManager;
import org.slf4j.LoggerFactory;

/** The group coordinator's parts for streams groups that are functions: which topics a topology needs, who gets which tasks. */
class OracleStreams {
    static void serve(String op, JsonNode q, ObjectNode a) {
        if (op.equals("streamsTopics")) topics(q, a);
        else if (op.equals("streamsStep")) step(q, a);
        else assign(q, a);
    }

    private static void topics(JsonNode q, ObjectNode a) {
        var topology = StreamsTopology.fromRecord(StreamsGroupTopologyValueJsonConverter.read(q.get("topology"), (short) 0));
        var made = InternalTopicManager.configureTopics(
            LoggerFactory.getLogger("oracle"), "g", "m", 0, topology, image(q.get("topics")), new Oracle.Clock());
        made.topicConfigurationException().ifPresent(e -> a.put("status", e.status().code()).put("text", e.getMessage()));
        if (made.subtopologies().isPresent()) {
            var tasks = a.putObject("tasks");
            made.subtopologies().get().forEach((id, each) -> tasks.put(id, each.numberOfTasks()));
        }
        a.set("described", described(made.asStreamsGroupDescribeTopology()));
        a.set("raw", described(topology.asStreamsGroupDescribeTopology()));
        var missing = a.putArray("missing");
        made.internalTopicsToBeCreated().forEach((name, topic) -> {
            var row = missing.addObject().put("name", name).put("partitions", topic.numPartitions());
            row.put("replicationFactor", topic.replicationFactor());
            var configs = row.putArray("configs");
            topic.configs().forEach(each -> configs.addArray().add(each.name()).add(each.value()));
        });
    }

    private static JsonNode described(StreamsGroupDescribeResponseData.Topology topology) {
        var group = new StreamsGroupDescribeResponseData.DescribedGroup().setTopology(topology);
        var data = new StreamsGroupDescribeResponseData().setGroups(List.of(group));
        return StreamsGroupDescribeResponseDataJsonConverter.write(data, (short) 0).get("groups").get(0).get("topology");
    }

    private static CoordinatorMetadataImage image(JsonNode topics) {
        return proxy(CoordinatorMetadataImage.class, (name, given) -> {
            if (!name.equals("topicMetadata") || !topics.has((String) given[0])) return Optional.empty();
            int count = topics.get((String) given[0]).asInt();
            return Optional.of(proxy(CoordinatorMetadataImage.TopicMetadata.class, (method, none) -> count));
        });
    }

    private interface Called {
        Object call(String method, Object[] given);
    }

    private static <T> T proxy(Class<T> kind, Called called) {
        Object made = Proxy.newProxyInstance(
            kind.getClassLoader(), new Class<?>[] {kind}, (self, method, given) -> called.call(method.getName(), given));
        return kind.cast(made);
    }

    private static void assign(JsonNode q, ObjectNode a) {
        var members = new HashMap<String, MemberMetadataAndStateImpl>();
        for (JsonNode m : q.get("members")) {
            members.put(m.get("id").asText(), new MemberMetadataAndStateImpl(
                Optional.empty(), Optional.empty(), m.get("process").asText(), Map.of(),
                tasks(m.get("active")), tasks(m.get("standby")), Map.of(), offsets(m.get("offsets")), Map.of()));
        }
        var group = new GroupSpecImpl(members, new AssignmentConfigsImpl(q.get("standbyReplicas").asInt(), List.of()));
        var subtopologies = new TreeMap<String, JsonNode>();
        q.get("subtopologies").forEach(each -> subtopologies.put(each.get("id").asText(), each));
        var made = new StickyTaskAssignor().assign(group, new TopologyDescriber() {
            public List<String> subtopologies() { return List.copyOf(subtopologies.keySet()); }
            public int maxNumInputPartitions(String id) throws NoSuchElementException { return subtopologies.get(id).get("tasks").asInt(); }
            public boolean isStateful(String id) { return subtopologies.get(id).get("stateful").asBoolean(); }
        });
        var answer = a.putObject("members");
        made.members().forEach((id, member) -> {
            var row = answer.putObject(id);
            put(row.putObject("active"), member.activeTasks());
            put(row.putObject("standby"), member.standbyTasks());
        });
    }

    /** One step of a member towards its target. */
    private static void step(JsonNode q, ObjectNode a) {
        JsonNode m = q.get("member"), holders = q.get("holders");
        var member = StreamsGroupMember.Builder.withDefaults("m").setProcessId(m.get("process").asText())
            .setMemberEpoch(m.get("epoch").asInt()).setPreviousMemberEpoch(m.get("previous").asInt())
            .setState(MemberState.fromValue((byte) m.get("state").asInt()))
            .setAssignedTasks(owned(m.get("assigned"))).setTasksPendingRevocation(owned(m.get("revoking"))).build();
        JsonNode t = q.get("target"), o = q.get("owned");
        var builder = new CurrentAssignmentBuilder(member)
            .withTargetAssignment(q.get("targetEpoch").asInt(), tuple(t))
            .withCurrentActiveTaskProcessId((id, number) -> {
                JsonNode held = holders.get("active").get(id + "/" + number);
                return held == null ? null : held.asText();
            })
            .withCurrentStandbyTaskProcessIds((id, number) -> processes(holders.get("standby").get(id + "/" + number)))
            .withCurrentWarmupTaskProcessIds((id, number) -> processes(holders.get("warmup").get(id + "/" + number)))
            .withOwnedAssignment(o.isNull() ? null : tuple(o));
        StreamsGroupMember made;
        try {
            made = builder.build();
        } catch (FencedMemberEpochException e) {
            a.put("fenced", e.getMessage());
            return;
        }
        a.put("epoch", made.memberEpoch()).put("previous", made.previousMemberEpoch()).put("state", made.state().value());
        put(a.putObject("assigned"), made.assignedTasks());
        put(a.putObject("revoking"), made.tasksPendingRevocation());
    }

    private static TasksTuple tuple(JsonNode given) {
        return new TasksTuple(tasks(given.get("active")), tasks(given.get("standby")), tasks(given.get("warmup")));
    }

    private static TasksTupleWithEpochs owned(JsonNode given) {
        var active = new HashMap<String, Map<Integer, Integer>>();
        given.get("active").fields().forEachRemaining(e -> {
            var epochs = new HashMap<Integer, Integer>();
            e.getValue().fields().forEachRemaining(each -> epochs.put(Integer.valueOf(each.getKey()), each.getValue().asInt()));
            active.put(e.getKey(), epochs);
        });
        return new TasksTupleWithEpochs(active, tasks(given.get("standby")), tasks(given.get("warmup")));
    }

    private static Set<String> processes(JsonNode given) {
        var made = new HashSet<String>();
        if (given != null) given.forEach(each -> made.add(each.asText()));
        return made;
    }

    private static void put(ObjectNode row, TasksTupleWithEpochs tasks) {
        var active = row.putObject("active");
        tasks.activeTasksWithEpochs().forEach((id, epochs) -> {
            var numbers = active.putObject(id);
            epochs.forEach((number, epoch) -> numbers.put(String.valueOf(number), epoch));
        });
        put(row.putObject("standby"), tasks.standbyTasks());
        put(row.putObject("warmup"), tasks.warmupTasks());
    }

    private static Map<String, Set<Integer>> tasks(JsonNode given) {
        var made = new HashMap<String, Set<Integer>>();
        given.fields().forEachRemaining(e -> {
            var numbers = new HashSet<Integer>();
            e.getValue().forEach(number -> numbers.add(number.asInt()));
            made.put(e.getKey(), numbers);
        });
        return made;
    }

    private static Map<String, Map<Integer, Long>> offsets(JsonNode given) {
        var made = new HashMap<String, Map<Integer, Long>>();
        given.fields().forEachRemaining(e -> {
            var numbers = new HashMap<Integer, Long>();
            e.getValue().fields().forEachRemaining(each -> numbers.put(Integer.valueOf(each.getKey()), each.getValue().asLong()));
            made.put(e.getKey(), numbers);
        });
        return made;
    }

    private static void put(ObjectNode row, Map<String, Set<Integer>> tasks) {
        tasks.forEach((id, numbers) -> {
            var made = row.putArray(id);
            numbers.stream().sorted().forEach(made::add);
        });
    }
}
