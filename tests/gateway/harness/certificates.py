"""Certificates of servers, from an authority that the test makes."""

from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import trustme


class CertificateFiles(NamedTuple):
    """The files of one server, and the authority that its clients trust."""

    cert: Path
    key: Path
    root: Path

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls_cert": str(self.cert), "tls_key": str(self.key)}


def write_certificate(
    folder: Path, authority: trustme.CA, name: str = "server", *, not_after: datetime | None = None
) -> CertificateFiles:
    """Write a certificate for this machine, valid until then."""
    made = authority.issue_cert("localhost", "127.0.0.1", common_name=name, not_after=not_after)
    files = CertificateFiles(folder / f"{name}.crt", folder / f"{name}.key", folder / "root.crt")
    files.cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    made.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.root)
    return files
