"""Asks the registry by its Service again and again, on a new connection each time; says what went wrong; in a Pod."""

import http.client
import ssl
import time

HOST, PORT = "ai-models-dmcr.d8-ai-models.svc", 5000
PAUSE_SECONDS = 0.1


def main() -> None:
    """Ask for ever; each answer but the usual one is a line."""
    context = ssl.create_default_context(cafile="/run/registry/ca.crt")
    while True:
        connection = http.client.HTTPSConnection(HOST, PORT, timeout=10, context=context)
        try:
            connection.request("GET", "/v2/")
            status = connection.getresponse().status
            words = "" if status == http.HTTPStatus.UNAUTHORIZED else f"status {status}"
        except OSError as error:
            words = repr(error)
        finally:
            connection.close()
        print(f"failed: {words}" if words else "answered", flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
