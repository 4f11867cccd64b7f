# Runs one of SQLite's test scripts in testfixture. Under hakmem this process, and none of its children, prints the line
# that proves it was served: it has read its setting when it began, and tests take what their children print for an error.
set ::env(HAKMEM_SS_OS_STATS) 0
set argv0 [lindex $argv 0]
set argv [lrange $argv 1 end]
source $argv0
