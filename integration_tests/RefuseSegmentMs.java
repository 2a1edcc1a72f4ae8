import java.util.Map;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** Refuses `segment.ms`, as some managed clusters do. */
public class RefuseSegmentMs implements CreateTopicPolicy, AlterConfigPolicy {
    private static void check(Map<String, String> settings) {
        if (settings != null && settings.containsKey("segment.ms")) {
            throw new PolicyViolationException("Config property 'segment.ms' cannot be set on this cluster");
        }
    }

    @Override public void validate(CreateTopicPolicy.RequestMetadata request) { check(request.configs()); }
    @Override public void validate(AlterConfigPolicy.RequestMetadata request) { check(request.configs()); }
    @Override public void configure(Map<String, ?> settings) { }
    @Override public void close() { }
}
