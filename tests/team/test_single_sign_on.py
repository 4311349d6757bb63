"""Tests nginx's single sign-on configuration with a stand-in for oauth2-proxy."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.sharing import free_port
from tests.team.conftest import NAME, ROOT, write_certificate

pytestmark = [pytest.mark.team, pytest.mark.slow(seconds=1)]
FOLDER = ROOT / "deployments" / "team"


class Proxy(BaseHTTPRequestHandler):
    """Stand-in for oauth2-proxy and for a server behind nginx.

    The cookie `session=good` belongs to a user who is logged in.
    """

    def do_GET(self) -> None:
        good = "session=good" in self.headers.get("Cookie", "")
        started = self.path.startswith("/oauth2/start")
        status = (202 if good else 401) if self.path == "/oauth2/auth" else 302 if started else 200
        self.send_response(status)
        if started:
            self.send_header("Location", "https://provider.example/authorize")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy,
    ):
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        place, port = Path(folder), free_port()
        place.chmod(0o755)
        write_certificate(place)
        upstream = f"http://127.0.0.1:{proxy.server_port}"
        users = place / "users"
        subprocess.run(["htpasswd", "-bc", str(users), "ada", "right"], check=True)
        values = {
            "NAME": NAME, "ETC": place, "USERS": users, "CERTIFICATE": place / "certificate.pem",
            "CERTIFICATE_KEY": place / "key.pem", "PREFECT_PORT": port, "MLFLOW_PORT": free_port(),
            "UPLOAD_LIMIT": "1m", "PREFECT_UPSTREAM": upstream, "MLFLOW_UPSTREAM": upstream,
            "PREFECT_LOGIN": "x", "VARIABLES": "",
        }  # fmt: skip
        text = (FOLDER / "nginx.conf.template").read_text()
        site = re.sub(r"\$\{([A-Z_]+)\}", lambda result: str(values[result[1]]), text)
        (place / "site.conf").write_text(site)
        single = (FOLDER / "oidc.conf").read_text()
        assert "http://127.0.0.1:4180" in single
        (place / "oidc.conf").write_text(single.replace("http://127.0.0.1:4180", upstream))
        # Without `user`, this nginx would change the owner of Debian's upload folders. The team's
        # nginx, which also runs, could then not store uploads any more.
        (place / "nginx.conf").write_text(
            f"user www-data; pid {place}/pid; error_log {place}/log; events {{}}\n"
            f"http {{ access_log off; include {place}/site.conf; }}\n"
        )
        subprocess.run(["nginx", "-c", str(place / "nginx.conf")], check=True)
        context = ssl.create_default_context(cafile=str(place / "certificate.pem"))
        try:
            with httpx.Client(
                base_url=f"https://{NAME}:{port}", verify=context, trust_env=False
            ) as browser:
                yield browser
        finally:
            os.kill(int((place / "pid").read_text()), signal.SIGTERM)
            proxy.shutdown()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401), ({"Cookie": "session=bad"}, 401), ({"Cookie": "session=good"}, 200),
        ({"Authorization": "Basic YWRhOnJpZ2h0"}, 200),  # ada:right
        ({"Authorization": "Basic YWRhOndyb25n"}, 401),  # ada:wrong
        ({"Cookie": "session=good", "Origin": "https://evil.example"}, 403),
        ({"Cookie": "session=good", "Host": "evil.example"}, 421),
    ],
)  # fmt: skip
def test_a_session_or_a_password_logs_in(
    client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    assert client.get("/api/flows", headers=headers).status_code == status


def test_a_browser_is_sent_to_the_provider(client: httpx.Client) -> None:
    page = client.get("/flows?x=1", headers={"Accept": "text/html"})
    assert page.status_code == 302
    own = str(client.base_url).rstrip("/")
    assert page.headers["Location"] == f"{own}/oauth2/start?rd={own}/flows?x=1"
    provider = client.get(page.headers["Location"])
    assert provider.headers["Location"].startswith("https://provider.example/")
    assert client.get("/oauth2/auth").status_code == 404, "for nginx alone"
