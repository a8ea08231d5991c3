"""What a moved program imports: the command of docs/confluent-kafka.md, and the extra."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

HERE = "txnlog.compat.confluent_kafka"
OF_THE_EXTRA = (
    f"{HERE}:SerializingProducer",
    f"{HERE}:DeserializingConsumer",
    f"{HERE}.admin:AclBinding",
    f"{HERE}.admin:ScramMechanism",
    f"{HERE}.error:ValueSerializationError",
    f"{HERE}.serialization:StringSerializer",
    f"{HERE}.schema_registry:SchemaRegistryClient",
    f"{HERE}.schema_registry.avro:AvroSerializer",
    f"{HERE}.schema_registry._async.avro:AsyncAvroSerializer",
)
PLAIN = f"""
import sys
from {HERE} import Consumer, ElectionType, KafkaException, Producer
from {HERE}.admin import AdminClient, NewTopic, ResourceType
from {HERE}.aio import AIOProducer
from {HERE}.error import KafkaError, ProduceError
root = {{"bootstrap.servers": sys.argv[1]}}
AdminClient(root).create_topics([NewTopic("t", 1)])["t"].result()
Producer(root).close()
refused = AdminClient(root).describe_acls(None).exception()
assert refused.args[0].code() == KafkaError.SECURITY_DISABLED
print([name for name in sys.modules if name.split(".")[0] in ("confluent_kafka", "cimpl")])
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_of_the_page_changes_every_form_of_import(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import confluent_kafka\nfrom confluent_kafka import Producer\n"
        "def consumer():\n    from confluent_kafka.admin import AdminClient\n"
        "import confluent_kafka_tools\n"
    )
    [command] = re.findall(r"^\$ (sed .*)$", (ROOT / "docs/confluent-kafka.md").read_text(), re.M)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert program.read_text() == (
        "import txnlog.compat.confluent_kafka as confluent_kafka\n"
        "from txnlog.compat.confluent_kafka import Producer\n"
        "def consumer():\n    from txnlog.compat.confluent_kafka.admin import AdminClient\n"
        "import confluent_kafka_tools\n"
    )


def test_plain_clients_load_nothing_of_confluent_kafka(tmp_path: Path) -> None:
    """It starts librdkafka, and is no dependency of txnlog."""
    assert run(PLAIN, str(tmp_path / "root")) == "[]\n"


def test_names_of_the_extra_say_in_one_sentence_what_to_install() -> None:
    """Without it, a program must not end with an ImportError of a package it never named."""
    code = "import sys; sys.modules['confluent_kafka'] = None\n" + "".join(
        f"try:\n    from {module} import {name}\nexcept ImportError as error:\n    print(error)\n"
        for module, name in (each.split(":") for each in OF_THE_EXTRA)
    )
    said = run(code).splitlines()
    assert len(said) == len(OF_THE_EXTRA)
    for sentence in said:
        assert sentence.startswith("txnlog.compat.confluent_kafka."), sentence
        assert sentence.endswith('pip install "txnlog[confluent]".'), sentence


@pytest.mark.parametrize(
    "name",
    [
        "schema_registry.avro",
        "schema_registry.error",
        "schema_registry.rules",
        "schema_registry.confluent.meta_pb2",
        "schema_registry._async.json_schema",
        "schema_registry._sync.serde",
        "schema_registry.common.avro",
    ],
)
def test_module_below_the_registry_is_confluents_itself(name: str) -> None:
    """A second copy would have classes of its own, which `except` and isinstance do not know."""
    theirs = import_module(f"confluent_kafka.{name}")
    spec = theirs.__spec__
    assert import_module(f"{HERE}.{name}") is theirs
    assert theirs.__spec__ is spec


def test_registry_client_is_ours_by_each_of_its_names() -> None:
    """The one of confluent-kafka takes no root."""
    package = import_module(f"{HERE}.schema_registry")
    module = import_module(f"{HERE}.schema_registry.schema_registry_client")
    assert package.SchemaRegistryClient is module.SchemaRegistryClient
    assert package.SchemaRegistryClient.__module__.startswith("txnlog.")
    assert module.RuleKind is package.RuleKind
    assert {*package.__all__} <= {*dir(import_module("confluent_kafka.schema_registry"))}
    with pytest.raises(ImportError, match="no_such_module"):
        import_module(f"{HERE}.schema_registry.no_such_module")
