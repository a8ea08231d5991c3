"""Sets up what `make` needs, and says what to do where the machine lacks something.

    python3 conf/setup_env.py java                              Java 17 is there, for Spark
    python3 conf/setup_env.py packages --venv .venv --extras test,demo
    .venv/bin/python conf/setup_env.py jars                     the Delta jar is in Ivy's cache
    .venv/bin/python conf/setup_env.py peers                    the jars of `make bench-peers`

Standard library only, and no syntax newer than Python 3.6: an old Python must be able to read this
file to say that it is too old. Exit status 1 means that a message on stderr says what to do.
"""

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys

PYTHON_MIN = (3, 10)
JAVA_TESTED = 17
PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONF_DIR = os.path.join(PROJECT, "conf")
PEERS_POM = os.path.join(PROJECT, "benchmarks", "peers", "pom.xml")
SPARK_DEFAULTS = os.path.join(CONF_DIR, "spark-defaults.conf")


class SetupError(Exception):
    """Something the machine lacks; the text says what to do."""


def main() -> int:
    """Run one command of the command line; the exit status."""
    parser = argparse.ArgumentParser(description="Set up what `make` needs.")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("java", help="check that Spark will find Java 17")
    packages = commands.add_parser("packages", help="make the virtual environment and fill it")
    packages.add_argument("--venv", default=".venv")
    packages.add_argument("--extras", default="test,demo", help="extras of pyproject.toml")
    commands.add_parser("jars", help="fetch the Delta jar with the Spark of this Python")
    commands.add_parser("peers", help="fetch a Kafka broker and Spark's Kafka connector with Maven")
    commands.add_parser("nothing", help="what `jars` lets Spark run")
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
        elif arguments.command != "nothing":
            parser.error("name a command")
    except SetupError as error:
        sys.stderr.write("\n{}\n\n".format(str(error).rstrip()))
        return 1
    return 0


# --- Java -----------------------------------------------------------------------------------------


def check_java() -> None:
    """Spark will start with a Java that can run it. Raises: SetupError."""
    home = os.environ.get("JAVA_HOME", "")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java") or ""
    where = "JAVA_HOME={}".format(home) if home else java
    if not java:
        raise SetupError("There is no Java on PATH, and JAVA_HOME is not set. " + java_advice())
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
    """How to come by a Java 17 here: one that is installed but not used, or an install command."""
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
        "or unpack one anywhere and export JAVA_HOME=<its folder>."
    ).format(JAVA_TESTED)


# --- Python and its packages ----------------------------------------------------------------------


def install_packages(venv: str, extras: str) -> None:
    """Make the environment if there is none that works, and install the project into it, editable.

    Raises: SetupError when Python is too old or a step fails.
    """
    uv = shutil.which("uv")
    python = os.path.join(venv, "bin", "python")
    if python_version(python) < PYTHON_MIN:
        make_venv(venv, uv)
    say("Installing txnlog[{}] and what it needs into {} (once; some 500 MB).".format(extras, venv))
    installer = [uv, "pip", "install", "--python", python] if uv else pip_of(python)
    target = "{}[{}]".format(PROJECT, extras)
    if subprocess.call([*installer, "--quiet", "--editable", target], cwd=PROJECT) != 0:
        raise SetupError(
            "The Python packages could not be installed; the reason stands above.\n"
            + network_advice(
                "pip",
                "export PIP_INDEX_URL=https://pypi.mirror.example/simple    # uv: UV_DEFAULT_INDEX",
                "export PIP_CERT=/path/to/ca.pem    # uv: SSL_CERT_FILE",
            )
        )
    unpack_pyspark(python)


def unpack_pyspark(python: str) -> None:
    """Let Spark's Python workers import pyspark from files, which are compiled once.

    Spark puts python/lib/pyspark.zip first on their path, and every process compiles anew what it
    takes from an archive: 1.4 of the 1.9 s that it needs to start, and a query starts nine. A busy
    machine could not do it in the 10 s that Spark waits. A folder of that name does as well.
    """
    find = "import importlib.util as u; print(u.find_spec('pyspark').submodule_search_locations[0])"
    package = subprocess.check_output([python, "-c", find], text=True).strip()
    archive = os.path.join(package, "python", "lib", "pyspark.zip")
    if os.path.isfile(archive):
        os.remove(archive)
        os.mkdir(archive)
        os.symlink(os.path.relpath(package, archive), os.path.join(archive, "pyspark"))


def make_venv(venv: str, uv: "str | None") -> None:
    """An empty environment with a Python that is new enough. Raises: SetupError."""
    if uv:
        # uv can bring a Python of its own where the machine's is too old.
        wanted = sys.executable if sys.version_info >= PYTHON_MIN else ">=3.10"
        command = [uv, "venv", "--quiet", "--clear", "--python", wanted, venv]
    elif sys.version_info < PYTHON_MIN:
        raise SetupError(old_python_message())
    else:
        command = [sys.executable, "-m", "venv", "--clear", venv]
    say("Making a virtual environment in {}.".format(venv))
    if subprocess.call(command) != 0:
        shutil.rmtree(venv, ignore_errors=True)
        raise SetupError(
            "The virtual environment could not be made; the reason stands above. On Debian and "
            "Ubuntu\nPython's venv is a package of its own:\n\n"
            "    sudo apt-get install python3-venv"
        )


def old_python_message() -> str:
    """Names a newer Python of this machine, if there is one on PATH."""
    have = "{} is Python {}; txnlog needs {}.{} or newer.".format(
        sys.executable, ".".join(map(str, sys.version_info[:3])), *PYTHON_MIN
    )
    for minor in range(14, PYTHON_MIN[1] - 1, -1):
        other = shutil.which("python3.{}".format(minor))
        if other and python_version(other) >= PYTHON_MIN:
            return "{} There is one:\n\n    make PYTHON={} <target>".format(have, other)
    return have + (
        "\nInstall one (Debian, Ubuntu: sudo apt-get install python3 python3-venv; macOS: "
        "brew install python@3.12)\nand name it:\n\n    make PYTHON=/path/to/python3.12 <target>"
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
    """The command that installs into an environment; one that uv made has no pip until now."""
    if subprocess.call([python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL) != 0:
        subprocess.call([python, "-m", "ensurepip", "--upgrade"], stdout=subprocess.DEVNULL)
    # pep517: an old pip would otherwise build the sdists with whatever setuptools it brought.
    return [python, "-m", "pip", "install", "--disable-pip-version-check", "--use-pep517"]


# --- The Delta jar --------------------------------------------------------------------------------


def fetch_jars() -> None:
    """Let Spark resolve spark.jars.packages once, so that later starts need no network.

    Raises: SetupError when a jar cannot be had.
    """
    import pyspark  # only in the environment that `packages` made

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
            "\nWithout any network, copy ~/.ivy2.5.2 from a machine on which this step went well."
        )


def fetch_peers() -> None:
    """Let Maven copy the jars of PEERS_POM to .peers in the environment, a folder for each profile.

    Raises: SetupError when a jar cannot be had.
    """
    maven = shutil.which("mvn")
    if not maven:
        raise SetupError(
            "There is no Maven (mvn) on PATH; it fetches the Kafka broker and Spark's Kafka "
            "connector.\n\n"
            "    Debian, Ubuntu   sudo apt-get install maven\n"
            "    Fedora, RHEL     sudo dnf install maven\n"
            "    macOS            brew install maven\n\n"
            "`make bench` needs neither, and compares with Delta alone."
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
                "Maven could not fetch them:\n\n{}\n\n".format("\n".join(output[:8]))
                + "Mirrors, proxies and certificates stand in ~/.m2/settings.xml; see "
                "https://maven.apache.org/guides/mini/guide-mirror-settings.html"
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
    """The lines of Ivy's long report that say why."""
    marks = ("Server access error", "not found", "download failed", "PKIX", "UnknownHost")
    lines = [line.strip() for line in output.splitlines() if any(mark in line for mark in marks)]
    said = [line for line in dict.fromkeys(lines) if not line.startswith(("Exception", ":: "))]
    return ["    " + line for line in said[:8]]


def network_advice(program: str, mirror: str, certificate: str) -> str:
    """What to set when a package repository is out of reach of a program."""
    proxy = "" if program == "Spark" else "    export HTTPS_PROXY=http://proxy.example:3128\n"
    return (
        "If the network is the reason, tell {} the way and run make again:\n\n{}    {}\n    {}\n"
    ).format(program, proxy, mirror, certificate)


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
