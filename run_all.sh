#!/usr/bin/env bash
# Sets everything up, runs a suite and draws its report. Needs only Python 3.10 or newer.
#
#   ./run_all.sh                  the suite for this machine: node where CUDA devices are visible, else cpu
#   ./run_all.sh ARGS             hpbench run ARGS, for example: ./run_all.sh smoke
#   ./run_all.sh test [ARGS]      the tests, by pytest
#
#   HPBENCH_PYTHON=/path/to/python3.12 ./run_all.sh     sets up with that Python
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$here/.venv

refuse() {
    echo "run_all.sh: $*" >&2
    exit 2
}

find_python() {
    local candidate version found=""
    local candidates=(python3 python3.13 python3.12 python3.11 python3.10)
    [[ -z ${HPBENCH_PYTHON:-} ]] || candidates=("$HPBENCH_PYTHON")
    for candidate in "${candidates[@]}"; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
            "$candidate" -c 'import venv, ensurepip' 2>/dev/null ||
                refuse "Python $version ($candidate) has no venv module: install it (Debian and Ubuntu: apt-get install python3-venv)," \
                    "or name another Python by HPBENCH_PYTHON=/path/to/python3"
            echo "$candidate"
            return
        fi
        found="$found $candidate is Python $version,"
    done
    refuse "no usable Python:${found:- none of ${candidates[*]} starts,} and 3.10 or newer is needed: install one," \
        "or name it by HPBENCH_PYTHON=/path/to/python3"
}

# Installs once; again only when what is to be installed, or where, has changed.
set_up() {
    local python stamp
    stamp=$({ cat "$here/pyproject.toml" "$here/constraints.txt" && echo "$here"; } | cksum)
    if [[ -f $venv/stamp && $(<"$venv/stamp") == "$stamp" ]]; then
        return
    fi
    echo "run_all.sh: setting up $venv, once; this takes some minutes" >&2
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(find_python)
        "$python" -m venv --clear "$venv"
    fi
    local pip=("$venv/bin/python" -m pip install -qq --disable-pip-version-check --constraint "$here/constraints.txt")
    "${pip[@]}" --upgrade pip
    # torch by name and in the same command as all others, or pip may resolve another build of it for one of them.
    "${pip[@]}" "$(grep '^torch==' "$here/constraints.txt")" --editable "${here}[deepspeed,fairscale,transformers,dev]"
    echo "$stamp" >"$venv/stamp"
}

suite_for_this_machine() {
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} && (-z $CUDA_VISIBLE_DEVICES || $CUDA_VISIBLE_DEVICES == -1) ]]; then
        echo cpu
    elif [[ -e /dev/nvidia0 ]] || nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        echo node
    else
        echo cpu
    fi
}

set_up
if [[ ${1:-} == test ]]; then
    shift
    cd "$here"
    exec "$venv/bin/python" -m pytest "$@"
fi
[[ $# -gt 0 ]] || set -- "$(suite_for_this_machine)"
exec "$venv/bin/hpbench" run --report "$@"
