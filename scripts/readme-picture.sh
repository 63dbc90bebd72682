#!/usr/bin/env bash
# Draws docs/pictures/page.png, the picture of README.md: the page of the slow run of docs/tutorial/README.md in Chromium.
#
# usage: readme-picture.sh FILE.pfi   that run's recording
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

trace=${1:?name the recording, slow.pfi of docs/tutorial/README.md}
profinfer=${PROFINFER:-target/release/profinfer}
browser=$(command -v chromium-headless-shell || command -v chromium) || { echo "no Chromium: make setup" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$profinfer" html -o "$dir/page.html" "$trace"
HOME=$dir "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,860 \
    --screenshot="$dir/page.png" "file://$dir/page.html"
mv "$dir/page.png" docs/pictures/page.png
