package org.apache.kafka.storage.internals.log;

import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * An instance of a streams application that counts the words of topic "lines" into topic "counts": two subtopologies, a
 * repartition topic between them, a store with its changelog. Its settings come from the properties file that is named; it
 * prints its states and assignments, and ends in order when its stdin ends.
 */
public class OracleStreamsApp {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        try (var file = new FileReader(args[0])) { settings.load(file); }
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()));
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("store").withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream().mapValues(String::valueOf).to("counts", Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setUncaughtExceptionHandler(e -> {
            System.out.println("FAILED " + e + " " + e.getCause());
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> System.out.println("STATE " + now));
        streams.start();
        var in = new BufferedReader(new InputStreamReader(System.in));
        while (in.readLine() != null) {
            for (var thread : streams.metadataForLocalThreads()) {
                System.out.println("TASKS " + thread.activeTasks().size() + " " + thread.standbyTasks().size());
            }
        }
        streams.close();
        System.out.println("CLOSED");
    }
}
