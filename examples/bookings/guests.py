"""The guests: clients that book over HTTP, and repeat a request until it is answered."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from itertools import count

from examples.bookings.hotel import HOST

CLIENTS = 8
ANSWER_S = 5.0
PAUSE_S = 0.25
GIVE_UP_S = 120.0


class Guests:
    """Books on random nights of `nights`; `made` has the ids of all acknowledged bookings."""

    def __init__(self, port: Callable[[], int], *, nights: int, seed: int) -> None:
        self._port = port
        self._nights = nights
        self._draw = random.Random(seed)  # noqa: S311  nights
        self._lock = threading.Lock()
        self.made: list[str] = []
        self.repeated = 0
        """Requests that had to be sent again, because the service was dead or busy."""

    def book(self, bookings: int, progress: Callable[[int], None]) -> None:
        """Make bookings with several clients at a time; `progress` hears how many are made."""
        nights = [f"night {self._draw.randrange(self._nights)}" for _ in range(bookings)]
        with ThreadPoolExecutor(CLIENTS) as clients:
            for done in clients.map(self._book, count(), nights):
                progress(done)

    def _book(self, number: int, night: str) -> int:
        booking = {"id": f"b{number}", "guest": f"guest {number % 97}", "night": night}
        ends = time.monotonic() + GIVE_UP_S
        while (status := self._post(booking)) not in {201, 409}:
            if time.monotonic() > ends:
                raise TimeoutError(f"booking {number} has no answer; the last status is {status}")
            with self._lock:
                self.repeated += 1
            time.sleep(PAUSE_S)
        with self._lock:
            self.made.append(booking["id"])
            return len(self.made)

    def _post(self, booking: dict[str, str]) -> int | None:
        """Return the status of the answer; None if there is none."""
        connection = HTTPConnection(HOST, self._port(), timeout=ANSWER_S)
        try:
            connection.request(
                "POST", "/bookings", json.dumps(booking), {"content-type": "application/json"}
            )
            return connection.getresponse().status
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()
