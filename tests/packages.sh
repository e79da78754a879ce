#!/bin/sh
# Installs the Debian packages that the tests need, when it may; says what is left out when not.
set -eu
list=$(dirname "$0")/packages.txt
command -v dpkg-query >/dev/null 2>&1 || {
    echo "no Debian packages here: tests that need $(tr '\n' ' ' <"$list")are skipped"
    exit 0
}
missing=
for package in $(cat "$list"); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' && continue
    if [ "$package" = firewalld ] && [ -d /run/systemd/system ]; then
        echo "firewalld is not installed, for it would filter here at once; its tests are skipped"
        continue
    fi
    missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "not root, so these are not installed, and tests that need them are skipped:$missing"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 - one word a package
apt-get install -qq -y --no-install-recommends $missing >/dev/null
