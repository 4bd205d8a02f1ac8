"""Push a folder as python-oras documents it: `python -m perf.support.oras_push FOLDER HOST/NAME:TAG`."""

import sys
from pathlib import Path

import oras.client


def main(words: list[str]) -> int:
    """Push."""
    folder, target = Path(words[0]), words[1]
    files = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
    client = oras.client.OrasClient(insecure=True, tls_verify=False)
    client.push(target=target, files=files, disable_path_validation=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
