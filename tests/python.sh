#!/bin/sh
# Prints the first Python >= 3.10 on PATH.
for python in python3 python3.13 python3.12 python3.11 python3.10; do
    "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && exec echo "$python"
done
echo "no Python >= 3.10 with venv and pip on PATH; on Debian and Ubuntu: apt-get install python3-venv" >&2
exit 1
