"""HTTP for inference servers: requests go to no other host, and one deadline for a whole reply."""

import functools
import http.client
import io
import socket
import time
import urllib.request
from typing import Any, final


@functools.cache
def opener() -> urllib.request.OpenerDirector:
    """Return an opener whose timeout is that of the whole reply. A reply of status 3xx is an `HTTPError`.

    urllib sends a request that is redirected with all headers, and thus the key, to the other host. Its own timeout
    starts anew with every received byte.
    """
    return urllib.request.build_opener(_NoRedirect, _Http, _Https)


@final
class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None


@final
class _Within(io.RawIOBase):
    """The bytes of a socket until a deadline, after which reading raises `TimeoutError`."""

    def __init__(self, sock: socket.socket, limit_s: float) -> None:
        super().__init__()
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open after the connection is closed
        self._sock, self._end = sock, time.monotonic() + limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


@final
class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        if (limit_s := sock.gettimeout()) is not None:
            self.fp.close()
            self.fp = io.BufferedReader(_Within(sock, limit_s))


@final
class _Connection(http.client.HTTPConnection):
    response_class = _Response


@final
class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Response


@final
class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


@final
class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)
