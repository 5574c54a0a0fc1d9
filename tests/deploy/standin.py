"""Stand in for ``docker compose``: run the services of a compose file as processes of the system.

    python -m tests.deploy.standin FOLDER compose run --rm -T gateway1 keys gateway list

Each process sees the mounts, the variables and the host names of its container, by bubblewrap. All
processes share one network, so the one option that differs is the address to listen on. The
programs are those of the system, except for the gateway: its environment is built by the commands
of the Dockerfile. ``FOLDER`` has a copy of ``deploy``, and keeps the volumes and the logs.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..databases import find_binaries, find_user
from ..pages import ROOT
from ..programs import require
from ..waiting import block_until
from .compose import DOCKERFILE, PORTS, list_mounts, read_compose, read_env

# The parts of the system that programs need; everything else in a container is its own.
_SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib64", sys.base_prefix]
_SYSTEM += [f"/etc/{name}" for name in ("alternatives", "group", "ld.so.cache", "passwd", "ssl")]
POD = "127.0.2.1"
"""The address of the chart's pod."""
_NO_PROGRAM = ("grafana",)  # Debian has no package of it


def build(folder: Path) -> None:
    """Build the environment of the image by the commands of the first stage of the Dockerfile."""
    stage = DOCKERFILE.split("\nFROM ")[1].replace("\\\n", "")
    work = folder / "build"
    image = folder / "image"
    image.mkdir()
    for line in stage.splitlines():
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                place = work / target / ("" if target == f"./{source}" else Path(source).name)
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                place.parent.mkdir(parents=True, exist_ok=True)
                copy(ROOT / source, place)
        elif word == "RUN":
            mounts = ["--bind", work, "/build", "--bind", image, "/opt/dragoman"]
            system = [*Path("/").iterdir(), *Path("/opt").glob("*")]
            for path in set(system) - {Path(each) for each in ("/opt", "/proc", "/dev")}:
                mounts += ["--ro-bind", path, path]
            mounts += ["--proc", "/proc", "--dev", "/dev", "--bind", "/tmp", "/tmp"]
            python = f"{sys.base_prefix}/bin"
            command = [require("bwrap"), *mounts, "--chdir", "/build"]
            command += ["--setenv", "PATH", f"{python}:{os.environ['PATH']}", "sh", "-c", rest]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _bind_system() -> list[str]:
    return [each for path in _SYSTEM for each in ("--ro-bind-try", path, path)]


class Installation:
    """The services of a compose file, as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deploy = folder / "deploy"
        values = read_env((self._deploy / ".env").read_text())
        self.compose = read_compose(values, self._deploy)
        self.services: dict[str, Any] = self.compose["services"]
        self.addresses = {name: f"127.0.1.{at}" for at, name in enumerate(self.services, 1)}
        (folder / "logs").mkdir(exist_ok=True)
        hosts = [f"{address} {name}" for name, address in self.addresses.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))

    def run(self, service: str, words: Sequence[str], *, alone: bool = False) -> int:
        """Run a command of the gateway's program, once the services it needs are up."""
        if not alone:
            self._start_needed(service)
        return subprocess.run(
            [*self._contain(service), "dragoman", *words], check=False
        ).returncode

    def up(self) -> None:
        """Start every service that does not run."""
        for name in self.services:
            self._start(name)

    def check_health(self, service: str) -> int:
        """Run the image's health check in the container of a gateway."""
        (line,) = re.findall(r"^HEALTHCHECK .*CMD \[(.*)\]$", DOCKERFILE, re.MULTILINE)
        words = re.findall(r'"([^"]*)"', line.replace("127.0.0.1", self.addresses[service]))
        return subprocess.run([*self._contain(service), *words], check=False).returncode

    def copy(self, place: str, target: str) -> None:
        """Copy a file out of a volume of a container."""
        service, _, path = place.partition(":")
        for mount in list_mounts(self.compose, service):
            if mount.is_volume and Path(path).is_relative_to(mount.target):
                inside = Path(path).relative_to(mount.target)
                shutil.copy(self._folder / "volumes" / mount.source / inside, target)

    def _start_needed(self, service: str) -> None:
        for name in self.services[service].get("depends_on", ()):
            self._start(name)

    def _start(self, service: str) -> None:
        if service in _NO_PROGRAM or (self._folder / "logs" / f"{service}.pid").exists():
            return
        self._start_needed(service)
        log = (self._folder / "logs" / service).open("wb")
        process = subprocess.Popen(
            self._find_program(service), stdout=log, stderr=log, start_new_session=True
        )
        (self._folder / "logs" / f"{service}.pid").write_text(str(process.pid))

        def listens() -> bool:
            assert process.poll() is None, (self._folder / "logs" / service).read_text()
            address = "127.0.0.1" if service == "proxy" else self.addresses[service]
            for port in PORTS[service]:
                with socket.socket() as probe:
                    if probe.connect_ex((address, port)):
                        return False
            return True

        block_until(listens, f"{service} to listen")

    def _find_program(self, service: str) -> list[str]:
        """Return the command that the image of a service runs."""
        facts = self.services[service]
        address = self.addresses[service]
        image = facts["image"].partition(":")[0]
        if image == "dragoman":
            words = [re.sub("^--host=.*", f"--host={address}", each) for each in facts["command"]]
            return [*self._contain(service), "dragoman", *words]
        if image == "caddy":
            words = ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
            return [*self._contain(service, "--setenv", "XDG_DATA_HOME", "/data"), *words]
        if image == "prom/prometheus":
            words = ["--config.file=/etc/prometheus/prometheus.yml"]
            words += ["--storage.tsdb.path=/prometheus", f"--web.listen-address={address}:9090"]
            return [*self._contain(service), "prometheus", *words]
        if image == "redis":
            return [require("redis-server"), "--bind", address, "--save", "", "--dir", "/tmp"]
        assert image == "postgres"
        return self._find_postgres(facts["environment"], address)

    def _find_postgres(self, variables: dict[str, str], address: str) -> list[str]:
        """Make the database as the image does at its first start; return the server's command."""
        binaries = find_binaries()
        user = find_user()
        data = self._folder / "volumes" / "database"
        password = self._folder / "password"
        data.mkdir(parents=True)
        password.write_text(variables["POSTGRES_PASSWORD"])
        for path in (data, password) if user is not None else ():
            shutil.chown(path, user)
        become = (
            [] if user is None else ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
        )
        options = ["-D", str(data), "-U", variables["POSTGRES_USER"], "--pwfile", str(password)]
        first = [binaries / "initdb", *options, "-A", "scram-sha-256", "-N", "--encoding=UTF8"]
        first += ["--locale=C"]
        subprocess.run([*become, *first], check=True, stdout=subprocess.DEVNULL, cwd="/")
        single = [*become, str(binaries / "postgres"), "--single", "-D", str(data), "postgres"]
        statement = f"create database {variables['POSTGRES_DB']}\n"
        subprocess.run(
            single, check=True, input=statement, text=True, stdout=subprocess.DEVNULL, cwd="/"
        )
        options = ["-D", str(data), "-h", address, "-c", "unix_socket_directories="]
        return [*become, str(binaries / "postgres"), *options]

    def start_pod(
        self, container: Mapping[str, Any], files: Mapping[str, str], secret: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start the container of the chart's pod with the files of its config map."""
        config = self._folder / "pod"
        config.mkdir()
        for name, text in files.items():
            (config / name).write_text(text)
        variables = {**secret, **{each["name"]: each["value"] for each in container["env"]}}
        words = [re.sub("^--host=.*", f"--host={POD}", each) for each in container["args"]]
        command = [
            *self._enter(variables),
            *self._add_image(),
            "--ro-bind",
            str(config),
            "/config",
        ]
        command += ["--remount-ro", "/", "--", *container.get("command", ["dragoman"]), *words]
        log = (self._folder / "logs" / "pod").open("wb")
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _contain(self, service: str, *more: str) -> list[str]:
        """Return the command that starts a program with the files and variables of a container."""
        facts = self.services[service]
        variables = dict(facts.get("environment", {}))
        for file in facts.get("env_file", ()):
            variables |= read_env((self._deploy / file).read_text())
        command = self._enter(variables)
        for mount in list_mounts(self.compose, service):
            source = self._deploy / mount.source
            if mount.is_volume:
                source = self._folder / "volumes" / mount.source
                source.mkdir(parents=True, exist_ok=True)
            command += ["--bind" if mount.is_volume else "--ro-bind", str(source), mount.target]
        command += self._add_image() if facts["image"].startswith("dragoman:") else []
        return [*command, *more, *(["--remount-ro", "/"] if facts.get("read_only") else []), "--"]

    def _enter(self, variables: Mapping[str, str]) -> list[str]:
        """Return the begin of a command that sees the programs of the system and these variables."""
        command = [require("bwrap"), "--clearenv", *_bind_system(), "--proc", "/proc"]
        command += ["--dev", "/dev", "--tmpfs", "/tmp"]
        command += ["--ro-bind", str(self._folder / "hosts"), "/etc/hosts"]
        path = {"PATH": "/opt/dragoman/bin:/usr/bin:/usr/sbin:/bin"}
        settings = {**path, **variables}.items()
        return [*command, *[each for pair in settings for each in ("--setenv", *pair)]]

    def _add_image(self) -> list[str]:
        return ["--ro-bind", str(self._folder / "image"), "/opt/dragoman", "--dir", "/state"]


def main(folder: Path, words: Sequence[str]) -> int:
    """Obey the commands of Docker that the README uses."""
    match list(words):
        case ["compose", "build"]:
            return 0 if (folder / "image" / "bin" / "dragoman").exists() else 1
        case ["compose", "run", "--rm", "-T", "--no-deps", service, *rest]:
            return Installation(folder).run(service, rest, alone=True)
        case ["compose", "run", "--rm", "-T", service, *rest]:
            return Installation(folder).run(service, rest)
        case ["compose", "up", "-d"]:
            Installation(folder).up()
        case ["compose", "cp", place, target]:
            Installation(folder).copy(place, target)
        case _:
            raise SystemExit(f"the stand-in does not know: docker {' '.join(words)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
