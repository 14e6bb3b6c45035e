#!/bin/sh
# Measure a host with four or eight GPUs and carry out the runs in view and held out that were chosen for it:
#   validation/measure_gpus.sh 8 FOLDER
# Compile DeepSpeed's operations before (docs/CALIBRATION.md). Microbenchmarks take at most eight minutes, the
# runs of each list at most ten, and a short measurement after them shows whether the host kept its speed.
# Results of every part are kept as they come, so that the script may be ended at any time.
set -eu
case ${1:-} in
8) list=eight ;;
4) list=four ;;
*) echo "usage: $0 4|8 FOLDER" >&2; exit 2 ;;
esac
gpus=$1
folder=${2:?usage: $0 4|8 FOLDER}
runs=$(dirname "$0")/runs
failed=0

simoffload calibrate micro --gpus "$gpus" --time 480 -o "$folder/before"
for part in "$list-gpus" "$list-gpus-holdout"; do
    simoffload calibrate deepspeed "$runs/$part.yaml" --time 600 --case-time 180 -o "$folder/$part" || failed=1
done
simoffload calibrate micro --gpus "$gpus" --only hooks,copies --quick -o "$folder/after"
echo "in view: simoffload calibrate compare $folder/$list-gpus/runs.json --platform $folder/before/platform.yaml"
exit "$failed"
