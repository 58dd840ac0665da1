"""What a text is, its bytes say: packed by gzip or not, and in UTF-8 or in something else, which is refused by name."""

import bz2
import gzip
import lzma
import re
import zipfile

import pytest

from transduce.data.lines import read_lines
from transduce.data.pronunciations import read_dictionary

TEXT = "Größe\n我\nline\u2028separator\n"
LINES = ["Größe", "我", "line\u2028separator"]


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "A.GZ"])
def test_gzip_is_detected_by_content(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(TEXT.encode()) + gzip.compress(b"more\n"))
    assert read_lines(tmp_path / name) == [*LINES, "more"]
    (tmp_path / name).write_bytes(gzip.compress(TEXT.encode())[:30])
    with pytest.raises(ValueError, match="is not a whole gzip file"):
        read_lines(tmp_path / name)


def test_an_empty_gz_file_is_refused(tmp_path):
    """As an interrupted download leaves it; `gzip -t` refuses it, too."""
    (tmp_path / "a").touch()
    assert read_lines(tmp_path / "a") == []
    (tmp_path / "a.gz").touch()
    with pytest.raises(
        ValueError, match=r"a.gz is not a whole gzip file: it has no bytes; unpack it or fetch it again"
    ):
        read_lines(tmp_path / "a.gz")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b""))
    assert read_lines(tmp_path / "a.gz") == []


def packed_by(name, path):
    if name == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a", TEXT)
    else:
        path.write_bytes({"xz": lzma, "bzip2": bz2}[name].compress(TEXT.encode()))


@pytest.mark.parametrize("name", ["xz", "bzip2", "zip"])
def test_other_compressions_are_refused(tmp_path, name):
    packed_by(name, tmp_path / "a")
    with pytest.raises(ValueError, match="a is packed by xz, zip, bzip2 or zstd; unpack it"):
        read_lines(tmp_path / "a")


def test_text_that_resembles_a_compressed_header_is_read(tmp_path):
    """bzip2's files begin with BZh, a digit and other bytes."""
    (tmp_path / "a").write_text("BZh1 is a name.\nPK too\n")
    assert read_lines(tmp_path / "a") == ["BZh1 is a name.", "PK too"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_utf_16_is_refused_with_its_encoding(tmp_path, encoding, pack):
    """One of the encodings that the error names, of which the first is tried first, reads it."""
    text = "Open it.\nPrint it.\n"
    (tmp_path / "a").write_bytes(pack(text.encode(encoding)))
    with pytest.raises(ValueError, match="has a zero byte; if the file is UTF-16, convert it") as error:
        read_lines(tmp_path / "a")
    named = re.findall(r"utf-16\w*", str(error.value))
    assert text in [text.encode(encoding).decode(name) for name in named]


def test_a_byte_order_mark_is_skipped(tmp_path):
    (tmp_path / "a").write_bytes(TEXT.encode("utf-8-sig"))
    assert read_lines(tmp_path / "a") == LINES


def test_bytes_of_another_encoding_are_located(tmp_path):
    (tmp_path / "a").write_bytes("Open.\nŽluťoučký\n".encode("cp1250"))
    with pytest.raises(ValueError, match=r"a, line 2, byte 1 is 0x8e; .* iconv -f ENCODING -t utf-8"):
        read_lines(tmp_path / "a")


def test_a_dictionary_is_the_same_plain_or_gzip(tmp_path):
    content = "a AH0\nb\u2028 B IY1\n".encode()
    (tmp_path / "a.dict").write_bytes(content)
    (tmp_path / "a.dict.gz").write_bytes(gzip.compress(content))
    assert read_dictionary(tmp_path / "a.dict") == read_dictionary(tmp_path / "a.dict.gz")
