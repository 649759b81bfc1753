#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Several GPUs, on this machine: the native tests and the fuzz for every count from 1 to the
# machine's, then the tables of decodes on one GPU and on several. Within ten minutes, one CSV.
#
#   tests/run_shards.sh [build folder] [CSV file]
#
# The build folder (default: build/default) holds libconvoy.so and shard_fuzz. python3 must have
# PyTorch and diffusers. Over hosts: run python3 -m torch.distributed.run with --nnodes yourself.
# Exit code: the number of parts that failed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/default}
csv=${2:-$build/shards.csv}
fuzz=$build/tests/fuzz/shard/shard_fuzz
failed=0
# NOTE: NVLink multicast stays off: a program that dies with it can leave the GPUs unusable.
export NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1

gpus=$(nvidia-smi -L 2> /dev/null | wc -l)
if [ "$gpus" -eq 0 ]; then
  echo "run_shards.sh: no GPU here; on the CPU: shard_fuzz --help, tests/python/test_shard.py" >&2
  exit 1
fi
# NCCL comes with PyTorch where the loader has none.
nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2> /dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${nccl:+:$nccl}

lines=()
for count in $(seq 1 "$gpus"); do
  if ! said=$(timeout 60 "$fuzz" --device cuda --ranks "$count" --seconds $((80 / gpus)) \
      --count 1000000 --seed "$count" 2>&1 | tee /dev/stderr | tail -1); then
    failed=$((failed + 1))
  fi
  case $said in *" 0 failed"*) ;; *) failed=$((failed + 1)) ;; esac
  lines+=("fuzz,$count,$said")
done
if [ "$gpus" -gt 1 ]; then
  timeout 60 "$fuzz" --device cuda --ranks 2 --faults || failed=$((failed + 1))
  CONVOY_LIBRARY=$build/libconvoy.so PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} \
    timeout 420 python3 -m torch.distributed.run --nproc-per-node "$gpus" \
    -m convoy.bench.shards --budget 330 --csv "$csv" || failed=$((failed + 1))
fi
# The fuzz's rows behind the tables': case, ranks, and what it said as the note.
python3 - "$csv" "${lines[@]}" << 'PYTHON' || failed=$((failed + 1))
import csv, pathlib, sys
path = pathlib.Path(sys.argv[1])
rows = list(csv.DictReader(path.open())) if path.exists() else []
fields = list(rows[0]) if rows else ["case", "ranks", "note"]
for line in sys.argv[2:]:
    case, ranks, note = line.split(",", 2)
    rows.append({"case": case, "ranks": ranks, "note": note})
with path.open("w", newline="") as file:
    writer = csv.DictWriter(file, fields)
    writer.writeheader()
    writer.writerows(rows)
print(f"{path}: {len(rows)} rows")
PYTHON
exit $failed
