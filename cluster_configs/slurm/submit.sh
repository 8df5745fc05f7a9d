#!/usr/bin/env bash
# A run on the hosts of a Slurm job: a Ray whose head and workers are steps of the job, and `raydist submit` on its head.
# Use it on a cluster with Slurm. What follows the script's name is what follows `raydist submit`; the storage has to be a
# folder that all hosts mount, or an object store:
#
#   sbatch --nodes=4 --gpus-per-node=1 cluster_configs/slurm/submit.sh jobs/cifar.py --storage /shared/runs -p epochs=20
#   raydist status cifar-4711 --storage /shared/runs    # the run has the names of the job's script or --job-name, and id
#
# Change the lines below that begin with #SBATCH, or give sbatch options that win over them. The run has one worker on
# each host, with all CPUs that the job has there. Where other tasks need room, as ps and an evaluator do, give --workers
# and --cpus worker=N yourself; a config file cannot set these two. If the job is requeued, the run continues from its
# newest checkpoint: by Slurm after a preemption or a lost host, by `scontrol requeue`, or by this script two minutes
# before the job's time limit.
#
# Ray's own `ray symmetric-run` would do with fewer lines, but has no room for several jobs on one host, waits 30 s for
# the hosts, and its `ray stop` ends every Ray that you have there.
#SBATCH --job-name=raydist
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -euo pipefail

# Where raydist is installed, at the same path on each host.
if [[ -n "${RAYDIST_VENV:-}" ]]; then
    # shellcheck source=/dev/null
    source "$RAYDIST_VENV/bin/activate"
fi

# The batch script runs on the first host, so Ray's head is there too. The port depends on the job, as several may share
# a host; so does the token, without which everybody who reaches the port could run code as you.
address=$(python -c 'import ray; print(ray.util.get_node_ip_address())')
port=$((20000 + SLURM_JOB_ID % 10000))
RAY_ADDRESS=$address:$port
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_ADDRESS RAY_AUTH_MODE RAY_AUTH_TOKEN
# srun of Slurm 22.05 and later does not take it over from sbatch.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
own=(--num-cpus="$SRUN_CPUS_PER_TASK" --disable-usage-stats --block)

steps=()
start() { # NODES ARGUMENTS: a part of Ray on each of these hosts, as a step that ends with the job
    local nodes=$1 count
    shift
    count=$(scontrol show hostnames "$nodes" | wc -l)
    srun --overlap --nodes="$count" --ntasks="$count" --ntasks-per-node=1 --nodelist="$nodes" \
        ray start "${own[@]}" "$@" &
    steps+=($!)
}

finish() {
    trap - EXIT
    if ((${#steps[@]})); then
        kill "${steps[@]}" 2>/dev/null || true # srun sends it on to Ray
        wait "${steps[@]}" || true
    fi
}
trap finish EXIT

start "$SLURMD_NODENAME" --head --node-ip-address="$address" --port="$port" --include-dashboard=false
others=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep --invert-match --line-regexp "$SLURMD_NODENAME" || true)
until (: <"/dev/tcp/$address/$port") 2>/dev/null; do
    kill -0 "${steps[0]}" # ends the job where the head could not be started
    sleep 1
done
[[ -z "$others" ]] || start "$(paste -sd, <<<"$others")" --address="$RAY_ADDRESS"

# raydist refuses what a cluster can never give, and one whose hosts have not joined yet cannot give it.
python - "$SLURM_JOB_NUM_NODES" <<'PYTHON'
import sys
import time

import ray

ray.init(log_to_driver=False)
deadline = time.monotonic() + 300
while (num_hosts := sum(node["Alive"] for node in ray.nodes())) < int(sys.argv[1]):
    if time.monotonic() > deadline:
        sys.exit(f"only {num_hosts} of {sys.argv[1]} hosts joined Ray within 300 s; see the job's output")
    time.sleep(1)
PYTHON

raydist submit --name "$SLURM_JOB_NAME-$SLURM_JOB_ID" --resume auto --workers "$SLURM_JOB_NUM_NODES" \
    --cpus worker="$SRUN_CPUS_PER_TASK" "$@" &
submit=$!
is_late=
trap 'is_late=yes; kill -TERM "$submit"' USR1 # see --signal above
trap 'kill -TERM "$submit"' TERM
code=0
wait "$submit" || code=$?
while kill -0 "$submit" 2>/dev/null; do # a signal has ended the wait, and not the run
    wait "$submit" && code=0 || code=$?
done
if [[ -n "$is_late" && "$code" != 0 ]]; then
    finish
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
