"""What the panel's guard makes of large requests and of errors in the application behind it."""

import asyncio
import os

import pytest

from trainer.panel.guard import MOST_BODY, Guard, is_small
from trainer.panel.uploads import MOST_BYTES

START = {"type": "http.response.start", "status": 200, "headers": []}


def answer(app, folder, *received, **headers):
    """Send a request to a guarded application and return what it sends."""
    messages, sent = iter(received), []
    named = {"host": "localhost"} | {name.replace("_", "-"): v for name, v in headers.items()}
    scope = {"type": "http", "method": "POST", "path": "/a\x1b[2J"}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in named.items()]

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(app, folder)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    "small, headers",
    [
        (True, {}),
        (True, {"content-length": str(MOST_BODY)}),
        (False, {"content-length": str(MOST_BODY + 1)}),
        (False, {"content-length": "9" * 5000}),
        (False, {"content-length": "-1"}),
        (False, {"content-length": "\xb2"}),
        (False, {"transfer-encoding": "chunked"}),
        (False, {"transfer-encoding": "chunked", "content-length": "1"}),
    ],
)
def test_the_length_of_a_body_must_be_known_and_small(small, headers):
    assert is_small(headers.items()) is small


def test_a_large_request_never_reaches_the_application(tmp_path):
    async def app(scope, receive, send):
        pytest.fail("called")

    body = {"type": "http.request", "body": b"A" * 1000}
    start, said = answer(app, tmp_path, body, content_length=str(MOST_BODY + 1))
    assert start["status"] == 413 and b"at most 4 MB" in said["body"]


def test_an_error_of_the_application_is_a_line_and_an_answer(tmp_path, capfd):
    async def app(scope, receive, send):
        raise KeyError("\x1b[2J" + "x" * 1000)

    start, said = answer(app, tmp_path)
    assert start["status"] == 500 and said["body"].endswith(b"Its terminal says why.")
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: POST /a") and "KeyError" in line
    assert line.isprintable() and len(line) < 400


def test_an_answer_that_has_begun_is_not_begun_again(tmp_path, capfd):
    async def app(scope, receive, send):
        await send(START)
        raise OSError

    assert answer(app, tmp_path) == [START] and "OSError" in capfd.readouterr().err


def test_a_client_that_breaks_off_prints_nothing(tmp_path, capfd):
    async def app(scope, receive, send):
        if (await receive())["type"] == "http.disconnect":
            raise OSError

    assert answer(app, tmp_path, {"type": "http.disconnect"}) == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_request_has_written_is_bounded(tmp_path, fails):
    async def app(scope, receive, send):
        for n in range(3):
            path = tmp_path / f"tmp{n}"
            path.touch()
            os.truncate(path, MOST_BYTES // 2)
            os.utime(path, (n, n))
        if fails:
            raise OSError

    answer(app, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp1", "tmp2"]
