"""Which requests come from ComfyUI's own page.

A page of another site can reach a server on this machine, even under a name of its own that it
points here. So whatever changes something must carry the header X-S4S, which no foreign page can
send unasked, an Origin that is the Host, and a Host that ComfyUI is known to have.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from comfy.cli_args import args

_EVERYWHERE = {"0.0.0.0", "::"}


def is_own(headers):
    """Does a request with these headers come from a page of this very server?"""
    host, origin = headers.get("Host", "").lower(), headers.get("Origin")
    same = origin is None or origin.lower() in (f"http://{host}", f"https://{host}")
    site = headers.get("Sec-Fetch-Site", "same-origin") in ("same-origin", "none")
    return headers.get("X-S4S") == "1" and same and site and _is_ours(_name(host))


def _name(host):
    """The name or address in a Host header, without the port; "" where there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_ours(name):
    """This machine, or an address that ComfyUI was told to listen on.

    Told to listen everywhere, it has any name that reaches it: a proxy's, or the network's.
    """
    listens = {part.strip().lower() for part in args.listen.split(",")}
    return _is_loopback(name) or name in listens or bool(name and listens & _EVERYWHERE)


def _is_loopback(name):
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
