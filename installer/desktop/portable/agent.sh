# For install.sh and uninstall.sh: ends the agent of $opt, which hands over its work first, and starts it again.
stopped=

stop_agent() {
  [ -x "$opt/cottage-agent" ] || return 0
  pid=$("$opt/cottage-agent" status --json 2>/dev/null | tr ',{' '\n\n' | sed -n 's/^ *"pid": *\([0-9][0-9]*\).*/\1/p' | head -n 1)
  [ -n "$pid" ] || return 0
  stopped=$pid
  kill "$pid" 2>/dev/null || return 0
  waited=0
  while kill -0 "$pid" 2>/dev/null; do
    [ "$waited" -lt 90 ] || fail "the agent (process $pid) does not end; end it and try again."
    sleep 1
    waited=$((waited + 1))
  done
}

start_agent() {
  setsid "$opt/cottage-agent" run >/dev/null 2>&1 </dev/null &
}
