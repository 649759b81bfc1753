#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Several GPUs, on this machine: the fuzz for every count from 1 to the machine's, single layers by
# `convoy bench --shards`, exchanges by size, decodes on one GPU and on several, and what is predicted
# for 2, 4 and 8. Within ten minutes, one CSV.
#
#   tests/run_shards.sh [build folder] [CSV file]
#
# The build folder (default: build/default) holds libconvoy.so, bin/convoy and shard_fuzz. python3
# (PYTHON names another) has PyTorch and diffusers. Over hosts: run python3 -m torch.distributed.run
# with --nnodes yourself. Exit code: the number of parts that failed; 100 where none could run.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$root/build/default}" 2> /dev/null && pwd)
python=${PYTHON:-python3}
refuse() {
  echo "run_shards.sh: $1" >&2
  exit 100
}
[ -n "$build" ] || refuse "no folder ${1:-$root/build/default}; legal: a build of this tree"
csv=${2:-$build/shards.csv}
fuzz=$build/tests/fuzz/shard/shard_fuzz
for file in "$build/libconvoy.so" "$build/bin/convoy" "$fuzz"; do
  [ -e "$file" ] || refuse "no $file; legal: a folder where convoy_program and shard_fuzz were built"
done
# NOTE: NVLink multicast stays off: a program that dies with it can leave the GPUs unusable.
export NCCL_NVLS_ENABLE=0 PYTHONUNBUFFERED=1 CONVOY_LIBRARY=$build/libconvoy.so
export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH}
gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || refuse "no GPU here; on the CPU: shard_fuzz --help, tests/python/test_shard.py"
"$python" -c 'import torch, diffusers, convoy; assert torch.cuda.is_available()' ||
  refuse "$python cannot run the decodes (above: why); legal: PYTHON with PyTorch, diffusers, a GPU"
# NCCL comes with PyTorch where the loader has none.
nccl=$("$python" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2> /dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}${nccl:+:$nccl}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
rm -f "$csv"
failed=0
# part NAME SECONDS COMMAND...: runs it, shows what it says, and counts it where it fails.
part() {
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  timeout --kill-after=10 "$limit" "$@" > "$scratch/said" 2>&1
  code=$?
  sed "s/^/$name: /" "$scratch/said"
  [ $code -eq 0 ] || failed=$((failed + 1))
  echo "$name: exit $code after $((SECONDS - begin)) s"
  return $code
}

for count in $(seq 1 "$gpus"); do  # 70 s.
  part "fuzz on $count" 60 "$fuzz" --device cuda --ranks "$count" --seconds $((70 / gpus)) \
    --count 1000000 --seed "$count"
  printf 'fuzz,%s,%s\n' "$count" "$(tail -1 "$scratch/said")" >> "$scratch/fuzz"
done
if [ "$gpus" -gt 1 ]; then
  part faults 40 "$fuzz" --device cuda --ranks 2 --faults
  part "fuzz by NCCL" 40 env CONVOY_PEER_MEMORY=0 "$fuzz" --device cuda --ranks "$gpus" \
    --seconds 10 --count 1000000 --seed 9
  part "faults by NCCL" 40 env CONVOY_PEER_MEMORY=0 "$fuzz" --device cuda --ranks 2 --faults
  part exchanges 60 "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" \
    -m convoy.bench.exchange --rounds 5
  for count in $(seq 2 "$gpus"); do
    part "layers on $count" 40 "$build/bin/convoy" bench --shards "$count" --time 0.1 --csv \
      n1h256w256c512k512r3s3ph1pw1 n1h1024w1024c128k128r3s3ph1pw1 \
      n1d4h240w416c192k192t3r3s3pd1ph1pw1
    grep ',nccl ' "$scratch/said" >> "$scratch/layers"
  done
  part decodes 260 "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus" \
    -m convoy.bench.shards --budget 220 --rounds 4 --csv "$scratch/decodes.csv"
fi
part prediction 110 "$python" -m convoy.bench.shard_alone --counts 2,4,8 --rounds 3 \
  --cases flux1024,wan720,wan480,flux2048,hunyuan720 --budget 80 --csv "$scratch/alone.csv"
part CSV 30 "$python" - "$csv" "$scratch" << 'PYTHON'
import csv, pathlib, sys

scratch = pathlib.Path(sys.argv[2])


def read(name):
    path = scratch / name
    return list(csv.DictReader(path.open())) if path.exists() else []


rows = read("decodes.csv")
alone = {(row["case"], row["ranks"]): row for row in read("alone.csv")}
# T(n) = a rank's own work, measured alone, and the exchanges, each as it was on two.
for case in dict.fromkeys(key[0] for key in alone):
    two = next((r for r in rows if (r["case"], r["ranks"]) == (case, "2") and r["graph_ms"]), None)
    if two is None or (case, "2") not in alone:
        continue
    rest = float(two["graph_ms"]) - float(alone[case, "2"]["alone_ms"])
    for ranks in ("2", "4", "8"):
        own = alone.get((case, ranks))
        if own is None:
            continue
        row = next((r for r in rows if (r["case"], r["ranks"]) == (case, ranks)), None)
        if row is None:
            row = {"case": case, "ranks": ranks, "note": "predicted"}
            rows.append(row)
        row["alone_ms"] = own["alone_ms"]
        row["predicted_ms"] = float(own["alone_ms"]) + rest
        row["predicted_speed_up"] = float(own["one_ms"]) / row["predicted_ms"]
lines = (scratch / "fuzz").read_text().splitlines()
rows += [dict(zip(("case", "ranks", "note"), line.split(",", 2))) for line in lines]
layers = scratch / "layers"
for line in csv.reader(layers.open()) if layers.exists() else ():
    problem, _, transport, kernel, ranks, _, runs, one, plain, interior, silent, *rest = line
    rows.append({"case": problem, "ranks": ranks, "one_graph_ms": float(one) / 1e3,
                 "graph_ms": float(plain) / 1e3, "graph_speed_up": rest[1], "rounds": runs,
                 "note": f"{kernel}, {transport}: one launch {plain} us, interior first {interior}"
                         f" us, nothing exchanged {silent} us, bits {rest[-1]}"})
fields = list(dict.fromkeys(name for row in rows for name in row))
with open(sys.argv[1], "w", newline="") as file:
    writer = csv.DictWriter(file, fields)
    writer.writeheader()
    writer.writerows(rows)
print(f"{sys.argv[1]}: {len(rows)} rows")
PYTHON
echo "run_shards.sh: $gpus GPUs, $failed parts failed, $SECONDS s"
exit $failed
