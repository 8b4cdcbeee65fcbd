package org.apache.kafka.storage.internals.log;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.InetAddress;
import java.util.Optional;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.quota.ClientQuotaEntity.ConfigEntity;
import org.apache.kafka.server.quota.ClientQuotaManager;
import org.apache.kafka.server.quota.ClientRequestQuotaManager;
import org.apache.kafka.server.quota.ControllerMutationQuotaManager;
import org.apache.kafka.server.quota.QuotaType;

/** Kafka's ClientQuotaManager and its kinds, taken through quotas and requests at given times. */
class OracleQuota {
    /** Time stands still between steps. */
    private static class Steps implements Time {
        long now = 0;

        public long milliseconds() { return now; }
        public long nanoseconds() { return now * 1_000_000; }
        public void sleep(long ms) { now += ms; }
    }

    static void serve(JsonNode q, ObjectNode a) throws Exception {
        var time = new Steps();
        var config = new ClientQuotaManagerConfig(q.get("windows").asInt(), q.get("seconds").asInt());
        try (var metrics = new Metrics()) {
            var manager = switch (q.get("kind").asText()) {
                case "request_percentage" -> new ClientRequestQuotaManager(config, metrics, time, "oracle", Optional.empty());
                case "controller_mutation_rate" -> new ControllerMutationQuotaManager(config, metrics, time, "oracle", Optional.empty());
                default -> new ClientQuotaManager(config, metrics, QuotaType.PRODUCE, time, "oracle", Optional.empty());
            };
            try {
                ArrayNode answers = a.putArray("throttled");
                for (JsonNode step : q.get("steps")) {
                    time.now = step.get("at").asLong();
                    if (step.has("limit")) limit(manager, step);
                    else answers.add(request(manager, time, step));
                }
            } finally {
                manager.shutdown();
            }
        }
    }

    private static void limit(ClientQuotaManager manager, JsonNode step) {
        Optional<ConfigEntity> user = Optional.empty(), client = Optional.empty();
        if (step.has("user")) user = Optional.of(step.get("user").isNull() ? ClientQuotaManager.DEFAULT_USER_ENTITY
            : new ClientQuotaManager.UserEntity(step.get("user").asText()));
        if (step.has("client")) client = Optional.of(step.get("client").isNull() ? ClientQuotaManager.DEFAULT_USER_CLIENT_ID
            : new ClientQuotaManager.ClientIdEntity(step.get("client").asText()));
        manager.updateQuota(user, client,
            step.get("limit").isNull() ? Optional.empty() : Optional.of(Quota.upperBound(step.get("limit").asDouble())));
    }

    /** How long the client is to keep still; -1 - that: it is refused as well. */
    private static int request(ClientQuotaManager manager, Steps time, JsonNode step) throws Exception {
        var principal = new KafkaPrincipal(KafkaPrincipal.USER_TYPE, step.get("user").asText());
        var session = new Session(principal, InetAddress.getLoopbackAddress());
        String client = step.get("client").asText();
        double value = step.get("value").asDouble();
        if (!(manager instanceof ControllerMutationQuotaManager mutations))
            return manager.maybeRecordAndGetThrottleTimeMs(session, client, value, time.now);
        boolean strict = step.get("strict").asBoolean();
        var quota = strict ? mutations.newStrictQuotaFor(session, client) : mutations.newPermissiveQuotaFor(session, client);
        try {
            quota.record(value);
        } catch (ThrottlingQuotaExceededException e) {
            return -1 - quota.throttleTime();
        }
        return quota.throttleTime();
    }
}
