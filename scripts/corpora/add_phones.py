"""A manifest with a column `phones`, which a pronouncing dictionary says of the words of its text.

    python scripts/corpora/add_phones.py DICTIONARY MANIFEST OUT [--keep-stress]

DICTIONARY has a word and its phones in a line, as the CMU Pronouncing Dictionary has (cmudict.dict: `hello HH AH0 L OW1`); of
several pronunciations the first is taken. Case does not matter. A word that it lacks is SPN (spoken noise, as Kaldi calls it);
such words are counted, and some are named. Sound is not moved: OUT names it where it is. Then, in training,

    transduce train speech-to-text manifest --train OUT --interctc-column phones
"""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from make_manifest import write_manifest

from transduce.data.speech.manifest import read_manifest
from transduce.data.text.pronunciations import bare, read_dictionary
from transduce.exit import exit_code

UNKNOWN = "SPN"


def add_phones(dictionary: Path, manifest: Path, out: Path, *, keep_stress: bool = False) -> None:
    """Write the manifest anew, with its phones."""
    said, recordings = read_dictionary(dictionary, keep_stress=keep_stress), read_manifest(manifest)
    lacking, n_words, done = Counter[str](), 0, []
    for recording in recordings:
        words = [word for word in map(bare, recording.text.split()) if word]
        lacking.update(word for word in words if word not in said)
        n_words += len(words)
        phones = " ".join(said.get(word, UNKNOWN) for word in words)
        done.append(replace(recording, columns={**recording.columns, "phones": phones}))
    write_manifest(out, done)
    named = ", ".join(f"{word} ({n})" for word, n in lacking.most_common(10))
    told = f"{lacking.total():,} of {n_words:,} words are not in the dictionary" + (f": {named}" if named else "")
    print(f"{out}: {len(done):,} recordings; {told}")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dictionary", type=Path, metavar="DICTIONARY", help="a word and its phones in a line")
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="TSV with the column text")
    parser.add_argument("out", type=Path, metavar="OUT", help="TSV to write")
    parser.add_argument("--keep-stress", action="store_true", help="AH0 and AH1 are two phones; by default one, AH")
    x = parser.parse_args(arguments)
    return exit_code(
        lambda: add_phones(x.dictionary, x.manifest, x.out, keep_stress=x.keep_stress),
        interrupted="stopped; nothing was written",
    )


if __name__ == "__main__":
    sys.exit(main())
