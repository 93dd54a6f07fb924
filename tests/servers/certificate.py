"""A key and a certificate for 127.0.0.1 and localhost that only these tests trust."""

import os
import subprocess

from harness import need


def make(ctx, directory, user=None):
    """Paths of the key and the certificate, readable for `user` alone."""
    key, cert = directory / "server.key", directory / "server.crt"
    subprocess.run([need("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                    "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True, timeout=60, env=ctx.environment())
    key.chmod(0o600)
    if user:
        os.chown(key, user.pw_uid, user.pw_gid)
    return key, cert
