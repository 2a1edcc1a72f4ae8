"""The mistakes that people make on the command line: exit code 1, and the words that help, before a broker is asked."""

from pathlib import Path

import pytest
from typer.main import get_command

from rocketshim.cli import main
from rocketshim.cli.app import _with_options as with_options
from rocketshim.cli.app import build

AT = ["--bootstrap", "127.0.0.1:1"]
SHOP = """
from rocketshim import PushConsumer

consumer = PushConsumer("127.0.0.1:1", group="g")
number = 5

def typo():
    consumer.listener("orders", tag="a")
"""

MISTAKES: dict[str, tuple[list[str], str]] = {
    "no brokers": (["send", "orders", "x"], "Missing option '--bootstrap'"),
    "an empty variable": (["send", "orders", "x", "--bootstrap", ""], "--bootstrap: bootstrap is empty: write host"),
    "an empty variable, reading": (["dlq", "stats", "--group", "g", "-b", ""], "is a variable not set?"),
    "an empty variable, worker": (["worker", "--allow", "orders", "-b", ""], "bootstrap is empty"),
    "kafka://": (["group", "ls", "--bootstrap", "kafka://b:9092"], "an address is not a URL. Write b:9092"),
    "kafka://, only printed": (
        ["acls", "--role", "consumer", "--group", "g", "--bootstrap", "kafka://b:9092"],
        "Write b:9092",
    ),
    "http://": (["init", "--bootstrap", "http://b:9092"], "Kafka's protocol is not HTTP"),
    "a typo of a command": (["sned", "orders", "x"], "No such command 'sned'. Did you mean 'send'?"),
    "a typo of a command below": (["dlq", "stat", *AT], "Did you mean 'stats'"),
    "a typo of an option": (["send", "orders", "x", "--dely", "5s", *AT], "No such option: --dely"),
    "no topic": (["send"], "Missing argument 'topic'"),
    "no body": (["send", "orders", *AT], "give BODY"),
    "a delay as a word": (["send", "orders", "x", "--delay", "soon", *AT], "as in '90s'"),
    "a name without a delay": (
        ["send", "orders", "x", "--timer", "a", *AT],
        "error: --timer is given without a delay: a named message waits, give --delay or --deliver-at",
    ),
    "two delays": (
        ["send", "orders", "x", "--delay", "5s", "--delay-level", "3", *AT],
        "--delay and --delay-level are",
    ),
    "no name": (
        ["send", "orders", "x", "--at-most", "5s", *AT],
        "--at-most is given without a timer: give the message",
    ),
    "a time zone of nothing": (["send", "orders", "x", "--tz", "UTC", *AT], "--tz and --late are of a recurring"),
    "a way to log in that is none": (["console", "--auth", "x", *AT], "error: --auth x: String should match"),
    "a level as a word": (["send", "orders", "x", "--delay-level", "x", *AT], "Invalid value for '--delay-level'"),
    "a time as a word": (["send", "orders", "x", "--deliver-at", "tomorrow", *AT], "write a time such as"),
    "a property without a value": (["send", "orders", "x", "--property", "a", *AT], "write NAME=VALUE"),
    "two tags": (["send", "orders", "x", "--tag", "a||b", *AT], "a message has one tag"),
    "a topic with a blank": (["send", "my orders", "x", *AT], "Kafka accepts 1 to 249 of"),
    "a negative time-out": (["send", "orders", "x", "--timeout", "-1", *AT], "write 30s, 500ms, 2m, or a number"),
    "a client setting without a value": (["send", "orders", "x", "-c", "acks", *AT], "--client: write NAME=VALUE"),
    "a client file that is missing": (["send", "orders", "x", "-c", "@nope", *AT], "--client @nope: cannot read the"),
    "a client setting with underscores": (["send", "orders", "x", "-c", "linger_ms=1", *AT], "No such configuration"),
    "a client setting that must not change": (["send", "orders", "x", "-c", "acks=1", *AT], "must be 'all' here"),
    "a profile that is missing": (["send", "orders", "x", "--profile", "nope"], "to add it, write [profiles.nope]"),
    "a namespace with a dot": (["init", "--namespace", "a.b", *AT], "is not a namespace"),
    "no lanes": (["init", "--lanes", "0", *AT], "Invalid value for '--lanes'"),
    "the worker's group": (["init", "--group", "rmq.sched", *AT], "is the group of the delay-redelivery worker"),
    "since yesterday": (["dlq", "ls", "--group", "g", "--since", "yesterday", *AT], "a duration before now (30m, 2h"),
    "tags with a comma": (["dlq", "ls", "--group", "g", "--tags", "a,b", *AT], "write 'a || b'"),
    "SQL as tags": (["delayed", "ls", "--tags", "price > 5", *AT], "looks like an SQL condition"),
    "a typo in SQL": (["dlq", "ls", "--group", "g", "--where", "a >> 5", *AT], "position 3: found '>'"),
    "dead letters of nobody": (["dlq", "ls", *AT], "give --group GROUP"),
    "dead letters of a reserved group": (["dlq", "stats", "--group", "DEFAULT_CONSUMER", *AT], "RocketMQ reserves it"),
    "a plan that is missing": (["dlq", "apply", "nope.json", *AT], "file 'nope.json' does not exist"),
    "a plan that is none": (["dlq", "apply", "shop.py", *AT], "this is not a redrive plan of version 1"),
    "parked records without a selection": (["parked", "plan", *AT], "select records by PARTITION/OFFSET"),
    "a reset to nowhere": (["group", "reset", "g", *AT], "Missing option '--to'"),
    "a reset to a word": (["group", "reset", "g", "--to", "soon", *AT], "a duration before now (30m, 2h, 3d)"),
    "a blank group": (["group", "lag", "  ", *AT], "give a text that is not blank"),
    "nothing to trace": (["trace", *AT], "Missing argument 'ID|TOPIC/PARTITION/OFFSET'"),
    "a negative limit": (["topic", "ls", "orders", "--limit", "-1", *AT], "Invalid value for '--limit'"),
    "a consumer without a name": (["run", "shop"], "write MODULE:NAME"),
    "a module that is missing": (["run", "nosuch:consumer"], "there is no module 'nosuch' here"),
    "a consumer that is missing": (["run", "shop:nosuch"], "shop has no nosuch"),
    "a consumer that is none": (["run", "shop:number"], "name a rocketshim.PushConsumer"),
    "an option that does not exist": (["run", "shop:typo"], "a listener has no option tag: did you mean tags?"),
    "a mistake at the import": (["run", "typo:consumer"], "error: typo.py, line 4: a listener has no option tag"),
    "a worker without topics": (["worker", *AT], "Missing option '--allow'"),
    "a worker for a topic with a blank": (["worker", "--allow", "my orders", *AT], "Kafka accepts 1 to 249 of"),
    "a level table with commas": (["worker", "--allow", "*", "--delay-levels", "1s,5s", *AT], "one of the units"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_the_words_that_help(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "typo.py").write_text("from shop import consumer\n\n\nconsumer.listener('orders', tag='a')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words, helpful = MISTAKES[mistake]
    assert main(words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert helpful.casefold() in said.casefold(), "what typer says depends on its version"


FILES: dict[str, list[str]] = {
    "a plan": ["dlq", "apply", "FILE", *AT],
    "settings of the client": ["group", "ls", "--client", "@FILE", *AT],
    "settings of Spark's client": ["spark", "land", "orders", "--lake", "lake", "--java-client", "@FILE", *AT],
    "the users of the console": ["console", "--auth", "@FILE", *AT],
    "the certificate of the console": ["console", "--tls-cert", "FILE", "--tls-key", "FILE", *AT],
    "a day of flights": ["demo", "--data", "FILE"],
    "the folder of a broker": ["broker", "run", "--port", "0", "--data", "FILE"],
    "the folder of dev": ["dev", "--data", "FILE", "--port", "1"],
    "the configuration": ["group", "ls"],
}
CONTENTS: dict[str, bytes | None] = {
    "a folder": None,
    "not text": b"\xff\xfe\x00" * 100,
    "another text": b"date,sched_dep_time\n1,2\n",
    "JSON": b'["id"]',
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_cannot_be_read_is_named(
    kind: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "the-file.x"
    if (data := CONTENTS[content]) is None:
        Path(name).mkdir(mode=0o700)
        Path(name, "cluster.json").mkdir()  # a folder of a broker has a file here
    else:
        Path(name).write_bytes(data)
        Path(name).chmod(0o600)
    if kind == "the configuration":
        monkeypatch.setenv("ROCKETSHIM_CONFIG", name)
    assert main([word.replace("FILE", name) for word in FILES[kind]]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert name in said
    assert len(said) < 600


def test_only_arguments_of_the_command_are_replaced_in_an_error_and_no_values() -> None:
    command = get_command(build(["send"])).commands["send"]  # type: ignore[attr-defined]
    for text in (
        "timer.delay_level=3 is not a setting of 'delay_level'",
        "no topic delay_level.x, and no late=night or codec=",
        "retry_topic is empty",
        "every broker is away",
    ):
        assert with_options(text, command.params) == text
    assert with_options("tag is 'delay=': not at_most.", command.params) == "--tag is 'delay=': not --at-most."
