"""SEAL's file format: checks a file before SEAL loads it, and rewrites it for another version of SEAL.

A SEAL object is a header of 16 bytes (magic, header size, version, compression, total length) and a body. A body can
contain objects again, which are not compressed a second time. Versions 4.x write the same bodies but refuse each
other's headers, and the SEAL of a browser rarely has the version of Python's. Files of untrusted clients are
decompressed into no more bytes than such a file has, and checked header by header.
"""

import hashlib
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEADER = struct.Struct("<HBBBBHQ")
MAGIC, MAJOR = 0xA15E, 4
PLAIN, ZLIB, ZSTD = range(3)
CHUNK = 2**20

# A ciphertext before its polynomials: parameters, NTT form, polynomials, degree, primes, scale, correction.
CIPHERTEXT = struct.Struct("<32s?QQQdQ")
COUNT = struct.Struct("<Q")
SEED_BYTES = HEADER.size + 65
FIRST_WORD = 2 * HEADER.size + CIPHERTEXT.size + COUNT.size  # the position of a ciphertext's first word

Version = tuple[int, int]


class NotThisError(ValueError):
    """A file without the expected content. The message is a reason in parentheses of another message."""


@dataclass(frozen=True)
class Header:
    """The header of an object."""

    version: Version
    compression: int
    length: int

    @classmethod
    def read(cls, file: BinaryIO) -> "Header":
        data = file.read(HEADER.size)
        if len(data) < HEADER.size:
            raise NotThisError("it is cut short")
        magic, size, major, minor, compression, _, length = HEADER.unpack(data)
        if (magic, size) != (MAGIC, HEADER.size):
            raise NotThisError("it is not a SEAL file")
        if major != MAJOR:
            raise NotThisError(f"it was written by SEAL {major}.{minor}, and this program reads SEAL {MAJOR}")
        return cls((major, minor), compression, length)

    def pack(self) -> bytes:
        return HEADER.pack(MAGIC, HEADER.size, *self.version, self.compression, 0, self.length)


@dataclass(frozen=True)
class Ciphertext:
    """The expected content of a ciphertext of two polynomials."""

    parameters: bytes  # their id
    degree: int
    primes: int
    scale: float
    seeded: bool = False  # whether the second polynomial must be a seed; otherwise it may be

    @property
    def most_bytes(self) -> int:
        polynomial = self.primes * self.degree * 8
        return FIRST_WORD + polynomial + (SEED_BYTES if self.seeded else polynomial)

    def versions(self, file: BinaryIO) -> Iterator[int]:
        """The positions of the headers inside, if this is such a ciphertext. Leaves the file at its end."""
        parameters, ntt, polynomials, degree, primes, scale, _ = CIPHERTEXT.unpack(exactly(file, CIPHERTEXT.size))
        if parameters != self.parameters:
            raise NotThisError("it was made for other parameters")
        if (ntt, polynomials, degree, primes, scale) != (True, 2, self.degree, self.primes, self.scale):
            raise NotThisError("it has another level, size or scale")
        yield file.tell()
        header = Header.read(file)
        count = self.primes * self.degree  # of one polynomial; then comes the other one, or its seed
        (numbers,) = COUNT.unpack(exactly(file, COUNT.size))
        if (
            numbers not in ((count,) if self.seeded else (count, 2 * count))
            or header.length != HEADER.size + COUNT.size + 8 * numbers
        ):
            raise NotThisError("its length is not the one in its header")
        skip(file, 8 * numbers)
        if numbers == count:
            yield file.tell()
            if Header.read(file).length != SEED_BYTES:
                raise NotThisError("its seed has another length")
            skip(file, SEED_BYTES - HEADER.size)


@dataclass(frozen=True)
class SwitchingKeys:
    """The expected content of a relinearisation or rotation key: key `at` of `keys`, and no others."""

    part: Ciphertext
    digits: int
    keys: int = 1
    at: int = 0

    @property
    def most_bytes(self) -> int:
        return HEADER.size + 32 + COUNT.size * (1 + self.keys) + self.digits * self.part.most_bytes

    def versions(self, file: BinaryIO) -> Iterator[int]:
        if exactly(file, 32) != self.part.parameters:
            raise NotThisError("it was made for other parameters")
        if COUNT.unpack(exactly(file, COUNT.size)) != (self.keys,):
            raise NotThisError("it is another kind of key")
        for number in range(self.keys):
            (digits,) = COUNT.unpack(exactly(file, COUNT.size))
            if digits != (self.digits if number == self.at else 0):
                raise NotThisError("it is the key of another rotation")
            for _ in range(digits):
                yield file.tell()
                Header.read(file)
                yield from self.part.versions(file)


@dataclass(frozen=True)
class HybridKey:
    """The expected content of a hybrid key, which is our own format in SEAL's style: the parameters, the element of the
    automorphism (1 for relinearisation), the number of digits, and each digit as SEAL saves it, with a seed."""

    digit: Ciphertext
    digits: int
    element: int

    @property
    def head(self) -> bytes:
        """What precedes the digits, after the header."""
        return self.digit.parameters + COUNT.pack(self.element) + COUNT.pack(self.digits)

    @property
    def most_bytes(self) -> int:
        return HEADER.size + len(self.head) + self.digits * self.digit.most_bytes

    def versions(self, file: BinaryIO) -> Iterator[int]:
        if exactly(file, len(self.digit.parameters)) != self.digit.parameters:
            raise NotThisError("it was made for other parameters")
        if COUNT.unpack(exactly(file, COUNT.size)) != (self.element,):
            raise NotThisError("it is the key of another rotation")
        if COUNT.unpack(exactly(file, COUNT.size)) != (self.digits,):
            raise NotThisError("it has another number of digits")
        for _ in range(self.digits):
            yield file.tell()
            if Header.read(file).length != self.digit.most_bytes:
                raise NotThisError("a digit has another length")
            yield from self.digit.versions(file)

    def write(self, file: BinaryIO, digits: Iterable[bytes], version: Version) -> None:
        """Writes a key whose digits are files of SEAL, uncompressed."""
        file.write(Header(version, PLAIN, self.most_bytes).pack() + self.head)
        for digit in digits:
            file.write(digit)

    def read(self, path: Path) -> Iterator[bytes]:
        """The digits of a file that `rewrite` has checked."""
        with path.open("rb") as file:
            file.seek(HEADER.size + len(self.head))
            for _ in range(self.digits):
                yield exactly(file, self.digit.most_bytes)


Content = Ciphertext | SwitchingKeys | HybridKey


def rewrite(source: Path, target: Path, wanted: Content, version: Version) -> Version:
    """Checks an object and writes it uncompressed for a version of SEAL. Returns the version that it had."""
    with source.open("rb") as packed, target.open("w+b") as file:
        header = Header.read(packed)
        if header.length != os.fstat(packed.fileno()).st_size:
            raise NotThisError("it is longer or shorter than its header says")
        for piece in inflated(packed, header.compression, wanted.most_bytes - HEADER.size):
            if file.tell() == 0:
                file.write(bytes(HEADER.size))
            file.write(piece)
        length = file.tell()
        file.seek(0)
        file.write(Header(version, PLAIN, length).pack())
        places = list(wanted.versions(file))
        if file.tell() != length:
            raise NotThisError("it is cut short" if file.tell() > length else "it is followed by other data")
        for place in places:
            file.seek(place)
            within = Header.read(file)
            if within.compression != PLAIN:
                raise NotThisError("an object inside is compressed")
            file.seek(place)
            file.write(Header(version, PLAIN, within.length).pack())
    return header.version


def inflated(file: BinaryIO, compression: int, most: int) -> Iterator[bytes]:
    """The decompressed body in pieces. Refuses a body of more than `most` bytes."""
    if compression not in DECOMPRESSORS:
        raise NotThisError(f"its compression {compression} is unknown")
    total = 0
    for piece in DECOMPRESSORS[compression](file):
        total += len(piece)
        if total > most:
            raise NotThisError("it is longer than such a part can be")
        yield piece


def plain(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK):
        yield piece


def inflate(file: BinaryIO) -> Iterator[bytes]:
    stream = zlib.decompressobj()
    try:
        while data := stream.unconsumed_tail or file.read(CHUNK):
            yield stream.decompress(data, CHUNK)
    except zlib.error as error:
        raise NotThisError(f"it is damaged: {error}") from error


def unpack_zstd(file: BinaryIO) -> Iterator[bytes]:
    # SEAL writes windows of at most a megabyte. This limits the memory that a frame can request.
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 24}
    try:
        with zstd.ZstdFile(file, options=options) as reader:
            while piece := reader.read(CHUNK):
                yield piece
    except (zstd.ZstdError, EOFError) as error:
        raise NotThisError(f"it is damaged: {error}") from error


DECOMPRESSORS = {PLAIN: plain, ZLIB: inflate, ZSTD: unpack_zstd}


def exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise NotThisError("it is cut short")
    return data


def skip(file: BinaryIO, count: int) -> None:
    file.seek(count, os.SEEK_CUR)


def version_of(path: Path) -> Version:
    """The version of SEAL that wrote a file."""
    with path.open("rb") as file:
        return Header.read(file).version


def parameters_id(degree: int, primes: Sequence[int]) -> list[int]:
    """SEAL's id of parameters: a hash of the scheme (2 is CKKS), the ring degree, the primes and a plain modulus, which
    CKKS has not."""
    words = (2, degree, *primes, 0)
    digest = hashlib.blake2b(struct.pack(f"<{len(words)}Q", *words), digest_size=32).digest()
    return list(struct.unpack("<4Q", digest))


def packed(identity: Sequence[int]) -> bytes:
    """An id as in files."""
    return struct.pack("<4Q", *identity)


def read_words(path: Path) -> np.ndarray:
    """The words of an array that SEAL saved."""
    with path.open("rb") as file:
        body = b"".join(DECOMPRESSORS[Header.read(file).compression](file))
    (count,) = COUNT.unpack_from(body)
    return np.frombuffer(body, dtype=np.uint64, count=count, offset=COUNT.size)


def write_ciphertext(path: Path, made: Ciphertext, words: np.ndarray, version: Version) -> None:
    """The file that SEAL would save for a ciphertext with these words, uncompressed."""
    head = CIPHERTEXT.pack(made.parameters, True, 2, made.degree, made.primes, made.scale, 1)
    array = Header(version, PLAIN, HEADER.size + COUNT.size + words.nbytes).pack() + COUNT.pack(words.size)
    length = HEADER.size + len(head) + len(array) + words.nbytes
    with path.open("wb") as file:
        file.writelines((Header(version, PLAIN, length).pack(), head, array, words.tobytes()))
