# Shared by the scripts of this folder; sourced, never run. Needs no other tools than coreutils.
# shellcheck shell=bash disable=SC2034

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${STEADYRAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/steadyray}
VENV=$ROOT/.venv

# Without byte code on disk every process compiles torch and Ray anew, which takes longer than most tests.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }

die() { # message, then what to type
  say "error: $1"
  [[ $# -lt 2 ]] || say "  fix: $2"
  exit 1
}

digest() { # one digest of the arguments' contents
  cat -- "$@" | "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])'
}

# A version manager's stub may lie on PATH without an interpreter behind it, so each candidate is run.
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }

find_python() { # sets PYTHON to the real path of a fitting interpreter
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
    if fits "$candidate"; then
      PYTHON=$("$candidate" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
      return
    fi
    [[ -z ${PYTHON:-} ]] || die "PYTHON=$PYTHON is not Python 3.11, 3.12 or 3.13" "name another one, or leave PYTHON unset"
  done
  die "no Python 3.11, 3.12 or 3.13 on PATH" "install one, or: make setup PYTHON=/path/to/python3.13"
}

# One hashed wheel, kept outside the clone: a second clone downloads nothing.
find_uv() { # sets UV
  local lock=$ROOT/requirements/uv.txt scratch
  UV=$CACHE/uv-$(digest "$lock")/uv
  [[ ! -x $UV ]] || return 0
  mkdir -p "$CACHE" || die "cannot write to $CACHE" "STEADYRAY_CACHE=/a/folder/of/yours make setup"
  scratch=$(mktemp -d "$CACHE/uv.XXXXXX")
  say "setup: fetching uv"
  "$PYTHON" -m venv "$scratch/venv" ||
    die "$PYTHON cannot make virtual environments" "install its venv and ensurepip parts (Debian: python3-venv)"
  "$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock" ||
    die "uv could not be installed" "check the network or pip's configuration, then run the same command again"
  mkdir -p "${UV%/*}"
  mv "$scratch/venv/bin/uv" "$UV" # a rename on one file system: two set-ups at once cannot see half a file
  rm -rf "$scratch"
}
