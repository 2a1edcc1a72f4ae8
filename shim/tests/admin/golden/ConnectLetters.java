import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.connect.cli.ConnectStandalone;

/** A dead letter as Kafka Connect writes it: a sink whose converter cannot read a record. Runs until it is killed. */
public class ConnectLetters {
    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[1]);
        Path worker = folder.resolve("worker.properties");
        Path sink = folder.resolve("sink.properties");
        Files.writeString(worker, String.join("\n",
                "bootstrap.servers=" + args[0],
                "key.converter=org.apache.kafka.connect.storage.StringConverter",
                "value.converter=org.apache.kafka.connect.json.JsonConverter",
                "offset.storage.file.filename=" + folder.resolve("offsets"),
                "listeners=http://127.0.0.1:0",
                "plugin.discovery=only_scan",
                "plugin.path=" + folder.resolve("plugins")));
        Files.writeString(sink, String.join("\n",
                "name=file-sink",
                "connector.class=org.apache.kafka.connect.file.FileStreamSinkConnector",
                "tasks.max=1",
                "topics=connect-in",
                "file=" + folder.resolve("out"),
                "errors.tolerance=all",
                "errors.deadletterqueue.topic.name=connect-dlq",
                "errors.deadletterqueue.topic.replication.factor=1",
                "errors.deadletterqueue.context.headers.enable=true"));
        ConnectStandalone.main(new String[] {worker.toString(), sink.toString()});
    }
}
