# SPDX-License-Identifier: Apache-2.0
"""python -m convoy.bench vae [CLASS...]        times autoencoders of diffusers
python -m convoy.bench models SOURCE:NAME...    times models of timm, torchvision or a file
python -m convoy.bench peaks [CLASS...]         counts their memory and copies, without a GPU
python -m convoy.bench calls                    times single calls on the host
torchrun -m convoy.bench.shards                 times them over several GPUs beside one
python -m convoy.bench chart ROWS.csv OUT.svg   draws what `vae --csv --profile` wrote
"""

import pathlib
import sys


def main(words):
    command, *rest = words or ["--help"]
    if command == "vae":
        from . import vae

        return vae.main(rest)
    if command == "models":
        from . import models

        return models.main(rest)
    if command == "peaks":
        from . import peaks

        return peaks.main(rest)
    if command == "calls":
        from . import calls

        return calls.main(rest)
    if command == "chart" and len(rest) == 2:
        from . import chart

        pathlib.Path(rest[1]).write_text(chart.drawn(chart.read(rest[0])))
        return 0
    print(__doc__.strip(), file=sys.stdout if command in ("-h", "--help") else sys.stderr)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
