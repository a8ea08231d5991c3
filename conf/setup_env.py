"""Sets up the environment for `make`; if the machine lacks something, prints what to do.

    python3 conf/setup_env.py java                              check for Java 17, for Spark
    python3 conf/setup_env.py packages --venv .venv --extras test,demo
    .venv/bin/python conf/setup_env.py jars                     the Delta jar, into Ivy's cache
    .venv/bin/python conf/setup_env.py peers                    the jars of `make bench-peers`
    .venv/bin/python conf/setup_env.py stores                   the servers of `make stores`
    .venv/bin/python conf/setup_env.py docs                     the script that draws the diagrams

Uses only the standard library and the syntax of Python 3.6, so that an old Python can run this
file and report that it is too old. With exit status 1, a message on stderr says what to do.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile

PYTHON_MIN = (3, 10)
JAVA_TESTED = 17
PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONF_DIR = os.path.join(PROJECT, "conf")
PEERS_POM = os.path.join(PROJECT, "benchmarks", "peers", "pom.xml")
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
AZURITE = "azurite@3.35.0"
MERMAID = "mermaid@11.17.2"
SPARK_DEFAULTS = os.path.join(CONF_DIR, "spark-defaults.conf")


class SetupError(Exception):
    """A requirement is missing; the message says what to do."""


def main() -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Set up the environment for `make`.")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("java", help="check that Spark will find Java 17")
    packages = commands.add_parser("packages", help="create the virtual environment and install")
    packages.add_argument("--venv", default=".venv")
    packages.add_argument("--extras", default="test,demo", help="extras of pyproject.toml")
    commands.add_parser("jars", help="fetch the Delta jar with the Spark of this Python")
    commands.add_parser("peers", help="fetch a Kafka broker and Spark's Kafka connector with Maven")
    commands.add_parser("stores", help="install the servers of object stores that are tested")
    commands.add_parser("docs", help="fetch the script that draws the diagrams of the docs")
    commands.add_parser("nothing", help="do nothing: the program that `jars` submits to Spark")
    arguments = parser.parse_args()
    try:
        if arguments.command == "java":
            check_java()
        elif arguments.command == "packages":
            install_packages(os.path.abspath(arguments.venv), arguments.extras)
        elif arguments.command == "jars":
            fetch_jars()
        elif arguments.command == "peers":
            fetch_peers()
        elif arguments.command == "stores":
            fetch_stores()
        elif arguments.command == "docs":
            fetch_mermaid()
        elif arguments.command != "nothing":
            parser.error("give a command")
    except SetupError as error:
        sys.stderr.write("\n{}\n\n".format(str(error).rstrip()))
        return 1
    return 0


# --- Java -----------------------------------------------------------------------------------------


def check_java() -> None:
    """Check that Spark will find a Java that can run it. Raises: SetupError."""
    home = os.environ.get("JAVA_HOME", "")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java") or ""
    where = "JAVA_HOME={}".format(home) if home else java
    if not java:
        raise SetupError("Java is not on PATH, and JAVA_HOME is not set. " + java_advice())
    version = java_version(java)
    if version is None:
        raise SetupError("{} does not run ({}). ".format(java, where) + java_advice())
    if version < JAVA_TESTED:
        raise SetupError("Java {} ({}) is too old. ".format(version, where) + java_advice())
    if version > JAVA_TESTED:
        sys.stderr.write(
            "Note: this is Java {} ({}); the project is tested with {}.\n".format(
                version, where, JAVA_TESTED
            )
        )


def java_version(java: str) -> "int | None":
    """Major version of a java program (8 for 1.8); None when it does not run."""
    try:
        run = subprocess.run(
            [java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stdout.decode(errors="replace"))
    return int(found.group(1)) if run.returncode == 0 and found else None


def java_advice() -> str:
    """How to get Java 17: an installed one that is not in use, or install commands."""
    patterns = (
        "/usr/lib/jvm/*{}*".format(JAVA_TESTED),
        "/Library/Java/JavaVirtualMachines/*{}*/Contents/Home".format(JAVA_TESTED),
        "/opt/homebrew/opt/openjdk@{}/libexec/openjdk.jdk/Contents/Home".format(JAVA_TESTED),
        os.path.expanduser("~/.sdkman/candidates/java/{}*".format(JAVA_TESTED)),
    )
    for pattern in patterns:
        for home in sorted(glob.glob(pattern)):
            if java_version(os.path.join(home, "bin", "java")) == JAVA_TESTED:
                return "Java {} is installed but not used here:\n\n    export JAVA_HOME={}".format(
                    JAVA_TESTED, home
                )
    return (
        "Spark needs Java {0}:\n\n"
        "    Debian, Ubuntu   sudo apt-get install openjdk-{0}-jre-headless\n"
        "    Fedora, RHEL     sudo dnf install java-{0}-openjdk-headless\n"
        "    macOS            brew install openjdk@{0}\n\n"
        "or unpack a JDK anywhere and export JAVA_HOME=<its folder>."
    ).format(JAVA_TESTED)


# --- Python and its packages ----------------------------------------------------------------------


def install_packages(venv: str, extras: str) -> None:
    """Create the environment if there is no working one; install the project in editable mode.

    Raises: SetupError when Python is too old or a step fails.
    """
    uv = shutil.which("uv")
    python = os.path.join(venv, "bin", "python")
    if python_version(python) < PYTHON_MIN:
        make_venv(venv, uv)
    say("Installing txnlog[{}] with dependencies into {} (once; minutes).".format(extras, venv))
    installer = [uv, "pip", "install", "--python", python] if uv else pip_of(python)
    target = "{}[{}]".format(PROJECT, extras)
    if subprocess.call([*installer, "--quiet", "--editable", target], cwd=PROJECT) != 0:
        raise SetupError(
            "The Python packages could not be installed; see the reason above.\n"
            + network_advice(
                "pip",
                "export PIP_INDEX_URL=https://pypi.mirror.example/simple    # uv: UV_DEFAULT_INDEX",
                "export PIP_CERT=/path/to/ca.pem    # uv: SSL_CERT_FILE",
            )
        )
    # As `txnlog unpack-pyspark` does, which the extras may lack.
    if subprocess.call([python, "-m", "txnlog.process.worker_files"]) != 0:
        raise SetupError("pyspark's archive could not be unpacked; see the reason above.")


def make_venv(venv: str, uv: "str | None") -> None:
    """Create an empty environment with a recent Python. Raises: SetupError."""
    if uv:
        # uv can install a newer Python if the machine's is too old.
        wanted = sys.executable if sys.version_info >= PYTHON_MIN else ">=3.10"
        command = [uv, "venv", "--quiet", "--clear", "--python", wanted, venv]
    elif sys.version_info < PYTHON_MIN:
        raise SetupError(old_python_message())
    else:
        command = [sys.executable, "-m", "venv", "--clear", venv]
    say("Creating a virtual environment in {}.".format(venv))
    if subprocess.call(command) != 0:
        shutil.rmtree(venv, ignore_errors=True)
        raise SetupError(
            "The virtual environment could not be created; see the reason above. On Debian and "
            "Ubuntu\nPython's venv is a separate package:\n\n"
            "    sudo apt-get install python3-venv"
        )


def old_python_message() -> str:
    """The error for an old Python; suggests a newer one on PATH, if there is one."""
    have = "{} is Python {}; txnlog needs {}.{} or newer.".format(
        sys.executable, ".".join(map(str, sys.version_info[:3])), *PYTHON_MIN
    )
    for minor in range(14, PYTHON_MIN[1] - 1, -1):
        other = shutil.which("python3.{}".format(minor))
        if other and python_version(other) >= PYTHON_MIN:
            return "{} Use this one:\n\n    make PYTHON={} <target>".format(have, other)
    return have + (
        "\nInstall one (Debian, Ubuntu: sudo apt-get install python3 python3-venv; macOS: "
        "brew install python@3.12)\nand use it:\n\n    make PYTHON=/path/to/python3.12 <target>"
    )


def python_version(python: str) -> "tuple[int, ...]":
    """(major, minor) of a Python program; (0, 0) when it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        output = subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return (0, 0)
    return tuple(int(part) for part in output.decode().split("."))


def pip_of(python: str) -> "list[str]":
    """pip's install command in an environment; installs pip first if uv created it without."""
    if subprocess.call([python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL) != 0:
        subprocess.call([python, "-m", "ensurepip", "--upgrade"], stdout=subprocess.DEVNULL)
    # pep517: otherwise an old pip builds sdists with its own old setuptools.
    return [python, "-m", "pip", "install", "--disable-pip-version-check", "--use-pep517"]


# --- The Delta jar --------------------------------------------------------------------------------


def fetch_jars() -> None:
    """Let Spark resolve spark.jars.packages once, so that later starts need no network.

    Raises: SetupError when a jar cannot be fetched.
    """
    import pyspark  # only in the environment that `packages` created

    submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    environment = dict(os.environ, SPARK_CONF_DIR=CONF_DIR, PYSPARK_PYTHON=sys.executable)
    environment.pop("SPARK_HOME", None)
    say("Fetching {} through Spark (once).".format(delta_coordinates()))
    run = subprocess.run(
        [submit, os.path.abspath(__file__), "nothing"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if run.returncode != 0:
        output = run.stdout.decode(errors="replace")
        if "unresolved dependency" not in output and "download failed" not in output:
            raise SetupError("Spark did not start:\n\n" + output)
        raise SetupError(
            "The Delta jar could not be fetched from Maven Central:\n\n{}\n\n".format(
                "\n".join(reasons(output))
            )
            + network_advice(
                "Spark",
                "export DEFAULT_ARTIFACT_REPOSITORY=https://maven.mirror.example/maven2",
                'export SPARK_SUBMIT_OPTS="-Djavax.net.ssl.trustStore=/path/to/cacerts"',
            )
            + "\nSpark does not read HTTPS_PROXY. Behind a proxy:\n\n"
            '    export SPARK_SUBMIT_OPTS="-Dhttps.proxyHost=<host> -Dhttps.proxyPort=<port>"\n'
            "\nWithout any network, copy ~/.ivy2.5.2 from a machine on which this step succeeded."
        )


def fetch_peers() -> None:
    """Let Maven copy the jars of PEERS_POM to .peers in the environment, one folder per profile.

    Raises: SetupError when a jar cannot be fetched.
    """
    maven = shutil.which("mvn")
    if not maven:
        raise SetupError(
            "Maven (mvn) is not on PATH; it fetches the Kafka broker and Spark's Kafka "
            "connector.\n\n"
            "    Debian, Ubuntu   sudo apt-get install maven\n"
            "    Fedora, RHEL     sudo dnf install maven\n"
            "    macOS            brew install maven\n\n"
            "`make bench` needs no Maven, and compares only with Delta."
        )
    for profile in ("broker", "connector"):
        say("Fetching the jars of the {} with Maven (once).".format(profile))
        folder = os.path.join(sys.prefix, ".peers", profile)
        shutil.rmtree(folder, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        command = [maven, "-q", "-B", "-f", PEERS_POM, "-P", profile, *goal]
        run = subprocess.run(
            [*command, "-DoutputDirectory=" + folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if run.returncode != 0:
            output = run.stdout.decode(errors="replace").splitlines()
            raise SetupError(
                "Maven could not fetch the jars:\n\n{}\n\n".format("\n".join(output[:8]))
                + "Configure mirrors, proxies and certificates in ~/.m2/settings.xml; see "
                "https://maven.apache.org/guides/mini/guide-mirror-settings.html"
            )


def fetch_stores() -> None:
    """Install versitygw (with Go) and Azurite (with npm) into .stores in the environment.

    A missing Go or npm is no error: the tests of that store are skipped, and say so.
    Raises: SetupError when an installation fails.
    """
    folder = os.path.join(sys.prefix, ".stores")
    go, npm = shutil.which("go"), shutil.which("npm")
    if go:
        say("Building {} with Go (once; a few minutes).".format(VERSITYGW))
        environment = dict(os.environ, GOBIN=os.path.join(folder, "bin"))
        run_installer("versitygw", [go, "install", VERSITYGW], environment, "GOPROXY")
    if npm:
        say("Installing {} with npm (once).".format(AZURITE))
        options = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--loglevel=error"]
        command = [npm, "install", "--prefix", folder, *options, AZURITE]
        run_installer("Azurite", command, dict(os.environ), "npm_config_registry")
    for tool, program, server in (("go", go, "versitygw"), ("npm", npm, "Azurite")):
        if not program:
            say("{} is not on PATH: tests with {} will be skipped.".format(tool, server))


def fetch_mermaid() -> None:
    """Put mermaid's script, one file of its npm package, into .docs in the environment.

    A missing npm is no error: the site then shows the text of each diagram.
    Raises: SetupError when npm fails.
    """
    folder = os.path.join(sys.prefix, ".docs")
    npm = shutil.which("npm")
    if not npm:
        say("npm is not on PATH: the site will show diagrams as text.")
        return
    say("Fetching {} with npm (once).".format(MERMAID))
    os.makedirs(folder, exist_ok=True)
    command = [npm, "pack", MERMAID, "--pack-destination", folder, "--loglevel=error"]
    run_installer("mermaid", command, dict(os.environ), "npm_config_registry")
    package = os.path.join(folder, MERMAID.replace("@", "-") + ".tgz")
    with tarfile.open(package) as archive:
        script = archive.extractfile("package/dist/mermaid.min.js")
        assert script is not None
        with open(os.path.join(folder, "mermaid.min.js"), "wb") as copy:
            shutil.copyfileobj(script, copy)
    os.remove(package)


def run_installer(
    name: str, command: "list[str]", environment: "dict[str, str]", mirror: str
) -> None:
    """Run an installer. Raises: SetupError with the end of its output when it fails."""
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if run.returncode != 0:
        output = run.stdout.decode(errors="replace").splitlines()
        raise SetupError(
            "{} could not be installed:\n\n{}\n\n".format(name, "\n".join(output[-8:]))
            + "If the network is the cause, set {} to a mirror, or HTTPS_PROXY, and run make "
            "again.".format(mirror)
        )


def delta_coordinates() -> str:
    """The value of spark.jars.packages in conf/spark-defaults.conf."""
    with open(SPARK_DEFAULTS) as lines:
        for line in lines:
            name, _, value = line.strip().partition(" ")
            if name == "spark.jars.packages":
                return value.strip()
    raise SetupError("{} does not set spark.jars.packages.".format(SPARK_DEFAULTS))


def reasons(output: str) -> "list[str]":
    """The lines of Ivy's report that contain the cause."""
    marks = ("Server access error", "not found", "download failed", "PKIX", "UnknownHost")
    lines = [line.strip() for line in output.splitlines() if any(mark in line for mark in marks)]
    causes = [line for line in dict.fromkeys(lines) if not line.startswith(("Exception", ":: "))]
    return ["    " + line for line in causes[:8]]


def network_advice(program: str, mirror: str, certificate: str) -> str:
    """The settings of a program that cannot reach its package repository."""
    proxy = "" if program == "Spark" else "    export HTTPS_PROXY=http://proxy.example:3128\n"
    return (
        "If the network is the cause, configure {} and run make again:\n\n{}    {}\n    {}\n"
    ).format(program, proxy, mirror, certificate)


def say(text: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
