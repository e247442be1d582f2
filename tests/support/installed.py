"""What `make dist` runs with an installed wheel and nothing else: no torch, no checkout."""

import json
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import mmapds


def main():
    assert Path(mmapds.__file__).is_relative_to(sysconfig.get_path("purelib")), mmapds.__file__
    records = [{"id": number, "text": "x" * (number % 50 + 1)} for number in range(1000)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        for options in (["--length", "chars(text)"], ["--verify"]):
            subprocess.run([sys.executable, "-m", "mmapds.index", path, *options], cwd=folder, check=True)
        subprocess.run([Path(sys.executable).with_name("mmapds"), "show", path, "-1"], check=True)
        dataset = mmapds.open(path)
        assert dataset.take([7, 999, 0]) == [records[7], records[999], records[0]]
        assert dataset.lengths.tolist() == [len(record["text"]) for record in records]
        assert sorted(mmapds.Permutation(1000, seed=1)[:].tolist()) == list(range(1000))
    print(f"mmapds {mmapds.__version__} works as installed on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
