"""A Kerberos realm on loopback: MIT's KDC from Debian's packages krb5-kdc and krb5-admin-server, in a directory of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from consumer_coord.testing.processes import end, spawn
from consumer_coord.testing.real_kafka import free_ports
from tests.support.secrets import made_up

REALM = "EXAMPLE.TEST"
_DEADLINE_S = 60
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")


def why_not() -> str | None:
    """Return why no test with Kerberos can run here; None if one can."""
    if importlib.util.find_spec("gssapi") is None:
        return "Kerberos is not tested: pip install gssapi (with the packages libkrb5-dev and gcc)"
    missing = [name for name in _PROGRAMS if _program(name) is None]
    if missing:
        return f"Kerberos is not tested: no {', '.join(missing)} (apt-get install krb5-kdc krb5-admin-server krb5-user)"
    return None


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Kdc:
    """A realm with its KDC; use it as a context manager. ``environment`` are the variables of programs in the realm."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (self.port,) = free_ports(1)
        self.config = directory / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n[domain_realm]\n 127.0.0.1 = {REALM}\n"
        )
        profile = directory / "kdc.conf"
        profile.write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n  key_stash_file = {directory}/stash\n"
            f"  acl_file = {directory}/acl\n }}\n"
        )
        self.environment = {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(profile),
            "KRB5CCNAME": f"FILE:{directory}/cache",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", made_up("master-key"))

    def __enter__(self) -> Kdc:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the KDC, and wait until it listens."""
        with (self.directory / "kdc.log").open("ab") as log:
            command = [str(_program("krb5kdc")), "-n", "-r", REALM]
            self._process = spawn(
                command,
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                # A test may stop and start the KDC of a whole module.
                outlives_test=True,
            )
        ends = time.monotonic() + _DEADLINE_S
        while not _listens(self.port):
            assert self._process.poll() is None, (self.directory / "kdc.log").read_text()
            assert time.monotonic() < ends, "the KDC does not listen"
            time.sleep(0.05)

    def stop(self) -> None:
        """End the KDC."""
        if self._process is not None:
            end(self._process)
            self._process = None

    def keytab(self, *principals: str) -> Path:
        """Add principals, and return a file with their keys."""
        file = self.directory / f"{principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {file} {principal}")
        assert file.exists()
        return file

    def kinit(self, principal: str, keytab: Path) -> None:
        """Put a ticket of a principal into the credential cache."""
        self._run("kinit", "-k", "-t", str(keytab), principal)

    def _run(self, name: str, *arguments: str) -> None:
        environment: Mapping[str, str] = {**os.environ, **self.environment}
        command = [str(_program(name)), *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def in_realm(kdc: Kdc) -> Iterator[None]:
    """Set the variables of the realm in this process, whose Kerberos library reads them at each use."""
    before = {name: os.environ.get(name) for name in kdc.environment}
    os.environ.update(kdc.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
