"""The health check of the container: exits with 0 if the gateway answers /health/ready with 200.

The certificate of a TLS server is not checked: the connection stays within the container.
"""

import os
import ssl
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def check(environment: dict[str, str]) -> str:
    """Return what is wrong; empty if nothing is."""
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


if __name__ == "__main__":
    raise SystemExit(check(dict(os.environ)) or 0)
