"""The files of conf/kubernetes/ and conf/aws/, as far as they can be checked without a cluster.

The manifest is checked against the names, types and enums of the operator's resource definition
(spark_application_fields.json); the Dockerfile by the paths it copies and the versions it names.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES, AWS = ROOT / "conf" / "kubernetes", ROOT / "conf" / "aws"
FIELDS = json.loads((Path(__file__).parent / "spark_application_fields.json").read_text())["spec"]
DOCKERFILE = (KUBERNETES / "Dockerfile").read_text()
TYPES: dict[str, Any] = {
    "string": str, "integer": int, "boolean": bool, "object": dict, "array": list,
    "number": (int, float),
}  # fmt: skip
SPARK = importlib.metadata.version("pyspark")


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((KUBERNETES / "spark-application.yaml").read_text())
    return found


def test_manifest_has_only_fields_that_the_operator_knows() -> None:
    """Kubernetes prunes or refuses what it does not know: a setting without an effect."""
    assert manifest()["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert manifest()["kind"] == "SparkApplication"
    assert faults("spec", manifest()["spec"], FIELDS) == []


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"restartPolicy": {"type": "Sometimes"}}, "spec.restartPolicy.type is 'Sometimes'"),
        ({"executer": {}}, "spec.executer is no field"),
        (
            {"sparkConf": {"spark.ui.enabled": False}},
            "spec.sparkConf.spark.ui.enabled is no string",
        ),
        ({"driver": {"cores": "1"}}, "spec.driver.cores is no integer"),
        ({"driver": {"env": [{"value": "x"}]}}, "spec.driver.env[0] lacks name"),
    ],
)
def test_check_of_the_manifest_finds(wrong: dict[str, Any], fault: str) -> None:
    """A check that finds nothing wrong in anything proves nothing."""
    assert fault in faults("spec", {**manifest()["spec"], **wrong}, FIELDS)


def test_manifest_and_image_are_of_the_installed_spark() -> None:
    """Python workers of one version under the JVM of another do not start."""
    assert manifest()["spec"]["sparkVersion"] == SPARK
    assert re.search(r"^FROM apache/spark:(\d+\.\d+\.\d+)-", DOCKERFILE, re.M)[1] == SPARK  # type: ignore[index]


def test_settings_of_the_platforms_pages_are_those_of_conf() -> None:
    """Users paste them; what conf/ has learned to hide must be hidden there, too."""
    known = properties("spark-defaults.conf")
    found = [
        (page.name, name, value)
        for page in (ROOT / "docs" / "platforms").glob("*.md")
        for name, value in re.findall(r"^(?: {4})?(spark\.[\w.]+) (\S+)$", page.read_text(), re.M)
    ]
    assert {"databricks.md", "fabric.md"} <= {page for page, _, _ in found}
    assert [one for one in found if known.get(one[1]) != one[2]] == []


def test_manifest_runs_what_the_image_holds() -> None:
    """The path of the program is the image's, its settings are those of conf/."""
    spec = manifest()["spec"]
    program = spec["mainApplicationFile"].removeprefix("local:///opt/txnlog/")
    assert (ROOT / program).is_file()
    assert "COPY jobs /opt/txnlog/jobs" in DOCKERFILE
    known = properties("spark-defaults.conf") | properties("spark-s3a.conf")
    same = {name for name, value in spec["sparkConf"].items() if known.get(name) == value}
    assert {
        "spark.python.unix.domain.socket.enabled",
        "spark.sql.extensions",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.streaming.checkpointFileManagerClass",
        "spark.hadoop.fs.s3a.input.stream.type",
    } <= same


def test_dockerfile_copies_paths_that_exist_and_installs_the_dependencies() -> None:
    """An image that builds without the package's files imports nothing."""
    copied = [
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.M)
        for source in line.split()[:-1]
    ]
    assert copied
    assert not [source for source in copied if not (ROOT / source).exists()]
    # Python 3.10 has no parser of TOML.
    project = (ROOT / "pyproject.toml").read_text()
    packages = quoted_after("only-include = ", project)
    assert packages
    assert not [part for part in packages if part not in copied], "the wheel needs them"
    dependencies = quoted_after("\ndependencies = ", project)
    wanted = [one for one in dependencies if not one.startswith(("pyspark", "delta-spark"))]
    assert wanted
    assert not [dependency for dependency in wanted if f'"{dependency}"' not in DOCKERFILE]


def test_resources_of_the_service_account_belong_together() -> None:
    """A driver without rights on pods gets no executors."""
    text = (KUBERNETES / "service-account.yaml").read_text()
    account, role, binding = yaml.safe_load_all(text)
    spec = manifest()["spec"]
    assert {spec["driver"]["serviceAccount"], spec["executor"]["serviceAccount"]} == {
        account["metadata"]["name"]
    }
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    namespaces = {part["metadata"]["namespace"] for part in (account, role, binding, manifest())}
    assert len(namespaces) == 1
    assert {"create", "delete", "watch"} <= set(role["rules"][0]["verbs"])


@pytest.mark.parametrize("file", ["s3-policy.json", "s3-policy-consumer.json"])
def test_policy_grants_what_requests_need_and_no_more(file: str) -> None:
    """Too little fails at night; a policy with a star is no least right."""
    statements = json.loads((AWS / file).read_text())["Statement"]
    actions = {action for statement in statements for action in statement["Action"]}
    assert {statement["Effect"] for statement in statements} == {"Allow"}
    assert not [action for action in actions if "*" in action]
    wanted = {"s3:GetObject", "s3:ListBucket"}
    writes = {"s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    assert wanted <= actions
    assert (writes <= actions) == (file == "s3-policy.json")
    assert not writes & actions or file == "s3-policy.json"
    for statement in statements:
        on_bucket = "s3:ListBucket" in statement["Action"]
        for arn in statement["Resource"]:
            assert fnmatch(arn, "arn:aws:s3:::bucket" if on_bucket else "arn:aws:s3:::bucket/*")
        if on_bucket:
            assert statement["Condition"]["StringLike"]["s3:prefix"]


def test_lifecycle_deletes_no_live_object() -> None:
    """A rule that expires current versions deletes records: only vacuum may."""
    rules = json.loads((AWS / "s3-lifecycle.json").read_text())["Rules"]
    assert any("AbortIncompleteMultipartUpload" in rule for rule in rules)
    for rule in rules:
        assert set(rule.get("Expiration", {})) <= {"ExpiredObjectDeleteMarker"}
        assert "Transitions" not in rule


def test_s3a_settings_are_of_sparks_own_hadoop_and_delta() -> None:
    """hadoop-aws of another version fails at the first request, with NoSuchMethodError."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    (client,) = jars.glob("hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    packages = properties("spark-s3a.conf")["spark.jars.packages"].split(",")
    assert f"org.apache.hadoop:hadoop-aws:{hadoop}" in packages
    assert properties("spark-defaults.conf")["spark.jars.packages"] in packages
    excluded = properties("spark-s3a.conf")["spark.jars.excludes"].split(",")
    assert "software.amazon.awssdk:bundle" in excluded
    assert not [
        package for package in packages for pattern in excluded if _is_excluded(package, pattern)
    ]


def _is_excluded(package: str, pattern: str) -> bool:
    group, name, _ = package.split(":")
    excluded_group, excluded_name = pattern.split(":")
    return fnmatch(group, excluded_group) and fnmatch(name, excluded_name)


def quoted_after(name: str, text: str) -> list[str]:
    """The strings of a list in TOML."""
    _, _, rest = text.partition(name)
    lines = [line.partition("#")[0] for line in rest.partition("]")[0].splitlines()]
    return re.findall(r'"([^"]+)"', "\n".join(lines))


def properties(file: str) -> dict[str, str]:
    """The settings of a file in conf/."""
    lines = (ROOT / "conf" / file).read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    return {name: value.strip() for name, value in pairs}


def faults(path: str, value: Any, node: dict[str, Any]) -> list[str]:
    """What is wrong with a value, by a node of the resource definition."""
    kind = node.get("type", "any")
    if kind in TYPES and (
        not isinstance(value, TYPES[kind]) or (kind != "boolean" and isinstance(value, bool))
    ):
        return [f"{path} is no {kind}"]
    found = []
    if "enum" in node and value not in node["enum"]:
        found.append(f"{path} is {value!r}")
    if isinstance(value, dict):
        found += [f"{path} lacks {name}" for name in node.get("required", []) if name not in value]
        for name, part in value.items():
            if "fields" in node:
                known = node["fields"].get(name)
                found += (
                    faults(f"{path}.{name}", part, known)
                    if known is not None
                    else [f"{path}.{name} is no field"]
                )
            elif "values" in node:
                found += faults(f"{path}.{name}", part, {"type": node["values"]})
    if isinstance(value, list) and "items" in node:
        for number, part in enumerate(value):
            found += faults(f"{path}[{number}]", part, node["items"])
    return found
