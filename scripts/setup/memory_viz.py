"""Takes torch/cuda/_memory_viz.py out of wheels of torch without downloading them: a wheel is a zip file, so its directory and the
one member are read by ranges, from the index that pip is set to.

    python3 memory_viz.py DIRECTORY VERSION...      puts it into DIRECTORY/VERSION/_memory_viz.py
"""

import io
import os
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

from pip._internal.models.index import PyPI
from pip._vendor import requests

MEMBER = "torch/cuda/_memory_viz.py"
# Read at a time: a directory of some thousand names takes a few of these.
PART = 1 << 20


def setting(name: str) -> str:
    """A setting of pip's, from its files or its environment; "" if there is none."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value is not None:
        return value
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global." + name], capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


class Remote(io.RawIOBase):
    """A file on a server that is read by ranges."""

    def __init__(self, session: requests.Session, url: str) -> None:
        self.session, self.url, self.at = session, url, 0
        self.parts: dict[int, bytes] = {}
        first = self.fetch(0, 1)
        self.length = int(first.headers["Content-Range"].rpartition("/")[2])

    def fetch(self, start: int, length: int) -> requests.Response:
        headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        # Closed unread if the server sends all of it.
        with self.session.get(self.url, headers=headers, timeout=60, stream=True) as answer:
            answer.raise_for_status()
            if answer.status_code != 206:
                raise OSError("the index does not serve parts of files")
            _ = answer.content
            return answer

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence]
        self.at = base + offset
        return self.at

    def part(self, number: int) -> bytes:
        if number not in self.parts:
            start = number * PART
            self.parts[number] = self.fetch(start, min(PART, self.length - start)).content
        return self.parts[number]

    def readinto(self, buffer) -> int:
        wanted = min(len(buffer), self.length - self.at)
        if wanted <= 0:
            return 0
        number, offset = divmod(self.at, PART)
        found = self.part(number)[offset : offset + wanted]
        buffer[: len(found)] = found
        self.at += len(found)
        return len(found)


class Links(HTMLParser):
    """The targets of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def wheel(session: requests.Session, version: str) -> str:
    """The address of a wheel of this version; any will do."""
    index = setting("index-url") or PyPI.simple_url
    page = urljoin(index.rstrip("/") + "/", "torch/")
    # PEP 503: every index has this form.
    answer = session.get(page, headers={"Accept": "text/html"}, timeout=60)
    answer.raise_for_status()
    links = Links()
    links.feed(answer.text)
    for link in links.found:
        url = urljoin(answer.url, link).partition("#")[0]
        name = url.rpartition("/")[2]
        if name.startswith(f"torch-{version}-") and name.endswith(".whl"):
            return url
    raise OSError(f"the index has no wheel of torch {version}")


def main(directory: str, *versions: str) -> None:
    session = requests.Session()
    certificates = setting("cert")
    if certificates:
        session.verify = certificates
    for version in versions:
        to = Path(directory, version, "_memory_viz.py")
        if to.exists():
            continue
        remote = Remote(session, wheel(session, version))
        with zipfile.ZipFile(io.BufferedReader(remote)) as archive:
            text = archive.read(MEMBER)
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_suffix(".part")
        part.write_bytes(text)
        part.rename(to)
        print(f"{to}: {len(remote.parts)} MiB of {remote.length >> 20} read", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
