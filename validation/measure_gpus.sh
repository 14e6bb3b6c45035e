#!/bin/sh
# Measure a host with four or eight GPUs and carry out the runs in view and held out that were chosen for it:
#   validation/measure_gpus.sh 8 FOLDER
# Compile DeepSpeed's operations before (docs/CALIBRATION.md). Microbenchmarks take about eight minutes, the runs
# of each list at most ten, and a short measurement after them, of about three, shows whether the host kept its
# speed. Results of every part are kept as they come, so that the script may be ended at any time. A part that
# fails does not prevent the others; the exit status is then 1.
set -eu
usage="usage: $0 4|8 FOLDER"
case ${1:-} in
4|8) gpus=$1 ;;
*) echo "$usage" >&2; exit 2 ;;
esac
folder=${2:?$usage}
runs=$(dirname "$0")/runs
failed=0

mkdir -p "$folder"
simoffload calibrate micro --gpus "$gpus" -o "$folder/before" || failed=1
for list in several-gpus several-gpus-holdout; do
    simoffload calibrate deepspeed "$runs/$list.yaml" --ranks "$gpus" --time 600 --case-time 180 \
        -o "$folder/$list" || failed=1
done
simoffload calibrate micro --gpus "$gpus" --only hooks,copies --quick -o "$folder/after" || failed=1
echo "in view: simoffload calibrate compare $folder/several-gpus/runs.json --platform $folder/before/platform.yaml"
exit "$failed"
