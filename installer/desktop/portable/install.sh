#!/bin/sh
# Installs or upgrades Cottage for one user, without root: everything lies in the home folder. --quiet: do not open the window.
set -eu
cd "$(dirname "$0")"

fail() {
  echo "Cottage: $1" >&2
  exit 1
}

[ "$(id -u)" -ne 0 ] || fail "run this as the user who lends, not as root. For all users of a computer there is a Debian package."
[ "$(uname -m)" = x86_64 ] || fail "this package is for x86_64; this computer is $(uname -m)."
said=$(./cottage/cottage-agent --help 2>&1) || fail "it does not run on this system: $(echo "$said" | tail -n 1)"

opt=$HOME/.local/opt/cottage
versions=$HOME/.local/opt/cottage-versions
version=$(cat VERSION)
share=${XDG_DATA_HOME:-$HOME/.local/share}
config=${XDG_CONFIG_HOME:-$HOME/.config}
. ./agent.sh

stop_agent
mkdir -p "$HOME/.local/opt" "$HOME/.local/bin" "$share/applications" "$config/autostart" "$config/systemd/user"
mkdir -p "$versions"
rm -rf "$versions/.new" "$opt.old"
cp -a cottage "$versions/.new"
cp uninstall.sh agent.sh "$versions/.new/"
before=$(readlink "$opt" || true)
before=${before##*/}
rm -rf "$versions/$version"
mv "$versions/.new" "$versions/$version"
# Before there were versions side by side, this was the folder itself.
[ -L "$opt" ] || [ ! -e "$opt" ] || mv "$opt" "$opt.old"
ln -s "cottage-versions/$version" "$opt.new"
mv -T "$opt.new" "$opt"
if [ -n "$before" ] && [ "$before" != "$version" ]; then
  ln -sfn "$before" "$versions/previous"
fi
for kept in "$versions"/*; do
  case ${kept##*/} in "$version" | "$before" | previous) ;; *) rm -rf "$kept" ;; esac
done
rm -rf "$opt.old"

ln -sf "$opt/cottage" "$opt/cottage-agent" "$HOME/.local/bin/"
cp -a icons "$share/"
place() { sed "s|/opt/cottage/|$opt/|" "$1" >"$2"; }
place cottage.desktop "$share/applications/cottage.desktop"
if command -v update-desktop-database >/dev/null; then
  update-desktop-database "$share/applications" || true # Browsers then hand invitations (cottage://) to the window.
fi
place cottage-agent.service "$config/systemd/user/cottage-agent.service"
# Once only: who has switched it off does not want it back with the next version.
[ -e "$opt.installed" ] || place autostart.desktop "$config/autostart/cottage.desktop"
: >"$opt.installed"

[ -z "$stopped" ] || start_agent
echo "Cottage is installed in $opt. To remove it: sh $opt/uninstall.sh"
if [ "${1:-}" != --quiet ] && [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ]; then
  setsid "$opt/cottage" >/dev/null 2>&1 </dev/null &
fi
