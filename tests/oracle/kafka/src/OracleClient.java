package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's real clients against a broker on this machine. */
class OracleClient {
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    static void serve(String op, JsonNode q, ObjectNode a) throws Exception {
        switch (op) {
            case "createTopics" -> createTopics(q);
            case "produce" -> produce(q, a);
            case "consume" -> consume(q, a);
            case "commitOffsets" -> commitOffsets(q);
            case "groupOffsets" -> groupOffsets(q, a);
            case "readAsMember" -> readAsMember(q, a);
            case "transform" -> transform(q, a);
            default -> throw new IllegalArgumentException("unknown op " + op);
        }
    }

    static void closeAll() {
        PRODUCERS.values().forEach(p -> p.close(Duration.ZERO));
        PRODUCERS.clear();
    }

    private static Map<String, Object> settings(JsonNode q) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", q.get("bootstrap").asText());
        Oracle.properties(q.get("config")).forEach((name, value) -> settings.put((String) name, value));
        return settings;
    }

    private static void createTopics(JsonNode q) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (JsonNode t : q.get("topics")) {
            Map<String, String> config = new HashMap<>();
            Oracle.properties(t.get("config")).forEach((name, value) -> config.put((String) name, (String) value));
            topics.add(new NewTopic(t.get("name").asText(), t.path("partitions").asInt(1), (short) 1).configs(config));
        }
        try (Admin admin = Admin.create(settings(q))) {
            admin.createTopics(topics).all().get();
        }
    }

    /** Records in order; with "end" commit or abort they are one transaction of transactional.id in config. "close" ends the producer. */
    private static void produce(JsonNode q, ObjectNode a) throws Exception {
        Map<String, Object> settings = settings(q);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        String name = settings.toString();
        KafkaProducer<byte[], byte[]> producer = PRODUCERS.get(name);
        if (producer == null) {
            producer = new KafkaProducer<>(settings);
            PRODUCERS.put(name, producer);
            if (settings.containsKey("transactional.id")) producer.initTransactions();
        }
        if (settings.containsKey("transactional.id") && q.path("begin").asBoolean(true)) producer.beginTransaction();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode r : q.get("records")) {
            Integer partition = r.has("partition") ? Integer.valueOf(r.get("partition").asInt()) : null;
            sent.add(producer.send(new ProducerRecord<>(r.get("topic").asText(), partition, r.has("ts") ? Long.valueOf(r.get("ts").asLong()) : null,
                Oracle.bytes(r.get("key")), Oracle.bytes(r.get("value")), List.of(OracleLog.headers(r.get("headers"))))));
        }
        producer.flush();
        ArrayNode offsets = a.putArray("offsets");
        for (Future<RecordMetadata> s : sent) {
            try {
                offsets.add(s.get().offset());
            } catch (ExecutionException e) {
                offsets.add(e.getCause().toString());
            }
        }
        switch (q.path("end").asText("")) {
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> { }
        }
        if (q.path("close").asBoolean(true)) PRODUCERS.remove(name).close(q.has("end") || !settings.containsKey("transactional.id") ? Duration.ofSeconds(10) : Duration.ZERO);
    }

    private static void commitOffsets(JsonNode q) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode o : q.get("offsets"))
            offsets.put(new TopicPartition(o.get("topic").asText(), o.path("partition").asInt(0)), new OffsetAndMetadata(o.get("offset").asLong()));
        try (Admin admin = Admin.create(settings(q))) {
            admin.alterConsumerGroupOffsets(q.get("group").asText(), offsets).all().get();
        }
    }

    private static void groupOffsets(JsonNode q, ObjectNode a) throws Exception {
        try (Admin admin = Admin.create(settings(q))) {
            ObjectNode offsets = a.putObject("offsets");
            admin.listConsumerGroupOffsets(q.get("group").asText()).partitionsToOffsetAndMetadata().get()
                .forEach((tp, offset) -> offsets.put(tp.toString(), offset.offset()));
        }
    }

    private static KafkaConsumer<byte[], byte[]> member(JsonNode q) {
        Map<String, Object> settings = settings(q);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("group.id", q.get("group").asText());
        settings.put("enable.auto.commit", "false");
        settings.putIfAbsent("auto.offset.reset", "earliest");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(List.of(q.get("topic").asText()));
        return consumer;
    }

    /** At least "count" records that the group has not read yet. */
    private static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer, JsonNode q) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + q.path("timeoutMs").asLong(60_000);
        while (found.size() < q.get("count").asInt()) {
            if (System.currentTimeMillis() > deadline) throw new IllegalStateException(found.size() + " records after the time given");
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
        }
        return found;
    }

    /** As a member of a group, which commits what it read and leaves. */
    private static void readAsMember(JsonNode q, ObjectNode a) {
        ArrayNode records = a.putArray("records");
        try (KafkaConsumer<byte[], byte[]> consumer = member(q)) {
            for (ConsumerRecord<byte[], byte[]> r : poll(consumer, q)) put(records, r);
            consumer.commitSync();
        }
    }

    /** Copies records to the topic "into", with the group's offsets, in one transaction. */
    private static void transform(JsonNode q, ObjectNode a) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", q.get("bootstrap").asText());
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("transactional.id", q.get("transactionalId").asText());
        try (KafkaConsumer<byte[], byte[]> consumer = member(q); KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            List<ConsumerRecord<byte[], byte[]>> found = poll(consumer, q);
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> r : found)
                producer.send(new ProducerRecord<>(q.get("into").asText(), r.partition(), r.key(), r.value()));
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (TopicPartition tp : consumer.assignment()) offsets.put(tp, new OffsetAndMetadata(consumer.position(tp)));
            producer.flush();  // an abort drops what has not been sent
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            if (q.get("end").asText().equals("commit")) producer.commitTransaction();
            else producer.abortTransaction();
            a.put("moved", found.size());
        }
    }

    private static void put(ArrayNode records, ConsumerRecord<byte[], byte[]> r) {
        ObjectNode o = records.addObject().put("topic", r.topic()).put("partition", r.partition()).put("offset", r.offset()).put("ts", r.timestamp());
        o.put("key", Oracle.encode(r.key())).put("value", Oracle.encode(r.value()));
        ArrayNode headers = o.putArray("headers");
        for (Header h : r.headers()) headers.addArray().add(h.key()).add(Oracle.encode(h.value()));
    }

    /** Everything a consumer reads from the beginning of the topics to the offsets that are their ends now. */
    private static void consume(JsonNode q, ObjectNode a) {
        Map<String, Object> settings = settings(q);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.putIfAbsent("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        ArrayNode records = a.putArray("records");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (JsonNode topic : q.get("topics"))
                for (PartitionInfo p : consumer.partitionsFor(topic.asText())) partitions.add(new TopicPartition(p.topic(), p.partition()));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            ObjectNode endOffsets = a.putObject("endOffsets");
            ends.forEach((tp, end) -> endOffsets.put(tp.toString(), end));
            long deadline = System.currentTimeMillis() + q.path("timeoutMs").asLong(30_000);
            while (partitions.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
                if (System.currentTimeMillis() > deadline) throw new IllegalStateException("not at the end after the time given: " + ends);
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(100))) put(records, r);
            }
        }
    }
}
