"""The health check of the container: exits with 0 if the gateway answers /health/ready with 200, or if a worker has
written its health file lately.

The certificate of a TLS server is not checked: the connection stays within the container.
"""

import os
import ssl
import time
import urllib.error
import urllib.request

TIMEOUT_S = 4.0
WORKER_S = 10.0
"""A worker writes its health file every second."""


def check(environment: dict[str, str]) -> str:
    """Return what is wrong; empty if nothing is."""
    if file := environment.get("BATON_HEALTH_FILE"):
        return check_file(file)
    tls = bool(environment.get("BATON_TLS_CERT"))
    url = f"{'https' if tls else 'http'}://127.0.0.1:{environment.get('BATON_PORT') or 8000}/health/ready"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT_S):
            return ""
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"


def check_file(file: str) -> str:
    """The same of a worker, by its health file."""
    try:
        age_s = time.time() - os.stat(file).st_mtime
    except OSError as error:
        return f"{file}: {error.strerror}: the worker is not joined and ready"
    return "" if age_s < WORKER_S else f"{file} is {age_s:.0f} s old: the worker is not joined and ready"


if __name__ == "__main__":
    raise SystemExit(check(dict(os.environ)) or 0)
