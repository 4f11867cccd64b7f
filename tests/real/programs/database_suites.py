"""The own test suites of two database systems. Every test must end as it does under glibc."""

import re
import shutil
from pathlib import Path

from measured import REPO, WORKLOADS, served_allocs
from programs.databases import unprivileged
from registry import LONG_LIMIT_S, program

# What tests/real/fetch_tests.sh builds: no package has SQLite's tests, or testfixture, which runs them.
SQLITE_TESTS = REPO / "build/real/sqlite-tests"
SQLITE_PASSED = re.compile(r"^(\S.*?)\.\.\.(?: \(.*\) )? Ok$", re.MULTILINE)
SQLITE_OMITTED = re.compile(r"^\.  (.*)$", re.MULTILINE)
SQLITE_FAILED = re.compile(r"^!Failures on these tests:(.*)$", re.MULTILINE)
SQLITE_FILE = re.compile(r"^Time: (\S+) \d+ ms$", re.MULTILINE)
SQLITE_SUMMARY = re.compile(r"^(\d+) errors out of (\d+) tests", re.MULTILINE)
SQLITE_LEFT = re.compile(r"^(?:Unfreed memory|\d+ files were left open).*$", re.MULTILINE)


def sqlite_results(said):
    """What testfixture's output says of its tests: each kind of result, the failures first, then the number of all."""
    results = {
        "tests that failed": " ".join(SQLITE_FAILED.findall(said)).split(),
        "what was left": SQLITE_LEFT.findall(said),
        "omitted": SQLITE_OMITTED.findall(said),
        "files": SQLITE_FILE.findall(said),
        "tests that passed": SQLITE_PASSED.findall(said),
    }
    summary = SQLITE_SUMMARY.search(said)
    return results, tuple(map(int, summary.groups())) if summary else None


@program("sqlite-tests", does="SQLite's own tests, those of veryquick.test", needs={"setpriv": "util-linux"},
         version=("sh", "-c", f"echo 'puts [sqlite3 -version]' | {SQLITE_TESTS}/testfixture"),
         limit_s=LONG_LIMIT_S, fetched=(SQLITE_TESTS / "testfixture",))  # fmt: skip
def sqlite_tests(session):
    as_account = unprivileged(session)
    # The user may not be able to read where they lie.
    shutil.copytree(SQLITE_TESTS, session.directory / "sqlite")
    session.copy(WORKLOADS / "served.tcl")
    argv = ["sqlite/testfixture", "served.tcl", "sqlite/test/veryquick.test"]
    said = session.run(*as_account(argv), compare=False, statuses=(0, 1)).decode(errors="replace")
    results, summary = sqlite_results(said)
    session.require(summary, f"the tests did not reach their end:\n{said[-2000:]}")
    for kind, found in results.items():
        session.record(kind, "\n".join(found).encode())
    session.record("errors and tests", "{} {}".format(*summary).encode())
    session.require(not summary[0], f"tests failed: {results['tests that failed']}")
    session.note(f"{len(results['tests that passed']):,} tests passed in {len(results['files']):,} files")


MTR = Path("/usr/share/mysql/mysql-test/mariadb-test-run.pl")
# A choice of some 8,000: none that Debian's build skips, for want of debug code, that sleeps long or compares times, or
# that is repeated in many combinations of options. None is left out for a failure.
MARIADB_TESTS = """
    main.alter_table main.alter_table_online main.analyze_format_json main.analyze_stmt main.bulk_replace main.case
    main.change_user main.column_compression main.commit_1innodb main.consistent_snapshot main.count_distinct
    main.count_distinct2 main.cte_recursive main.ctype_ldml main.ctype_utf8 main.ctype_utf8mb4 main.delayed_blob
    main.derived main.derived_cond_pushdown main.distinct main.foreign_key main.func_gconcat main.func_math
    main.func_str main.get_diagnostics main.greedy_optimizer main.group_by_innodb main.group_min_max
    main.index_merge_innodb main.index_merge_myisam main.information_schema main.insert_update main.join
    main.join_cache main.join_nested main.join_outer main.join_outer_innodb main.key_cache main.lock
    main.long_unique main.long_unique_bugs main.max_session_mem_used main.merge main.multi_update
    main.multi_update_innodb main.myisam main.myisam-blob main.myisam_recover main.mysql_client_test main.opt_trace
    main.order_by main.order_by_innodb main.partition main.partition_alter main.partition_datatype
    main.partition_exchange main.partition_innodb main.partition_list main.partition_pruning main.partition_range
    main.partition_truncate main.plugin main.ps_3innodb main.ps_innodb main.query_cache main.query_cache_innodb
    main.range main.range_vs_index_merge main.reopen_temp_table main.repair main.rowid_filter main.selectivity
    main.sp main.sp-big main.sp-innodb main.sp_trans main.stat_tables main.statistics main.statistics_json
    main.subselect2 main.subselect4 main.subselect_innodb main.temp_table main.trigger-trans main.type_blob
    main.type_varchar main.union main.update main.user_var main.user_var-binlog main.variables main.view main.win
    archive.archive compat/oracle.sp compat/oracle.sp-cursor compat/oracle.sp-package csv.csv gcol.gcol_bugfixes
    heap.heap heap.heap_btree heap.heap_hash innodb.alter_table innodb.foreign_key innodb.innodb innodb.innodb-alter
    innodb.innodb-index innodb.innodb-truncate innodb.innodb-virtual-columns innodb.innodb_force_recovery
    innodb.innodb_multi_update innodb.innodb_stats innodb.insert_into_empty,16k innodb.instant_alter,16k
    innodb.instant_alter_bugs innodb.log_corruption innodb.log_file innodb.monitor innodb.mvcc innodb.purge
    innodb.recovery_shutdown innodb.restart,16k innodb.row_format_redundant innodb.stored_fk
    innodb.temp_table_savepoint innodb.truncate innodb.xa_recovery innodb_fts.crash_recovery,orig
    innodb_fts.fulltext innodb_fts.innodb_fts_large_records,orig innodb_fts.innodb_fts_misc_1
    innodb_fts.innodb_fts_multiple_index,orig innodb_fts.innodb_fts_proximity,orig
    innodb_fts.innodb_fts_transaction,orig innodb_fts.phrase json.json_no_table json.json_table maria.maria
    maria.maria-purge maria.maria-recover maria.maria3 maria.repair parts.partition_alter1_1_innodb
    parts.partition_auto_increment_innodb parts.partition_datetime_myisam parts.partition_mgm_lc0_innodb
    parts.partition_recover_myisam parts.partition_special_innodb sql_sequence.create sql_sequence.next
""".split()
MTR_OUTCOME = re.compile(r"^([\w/-]+\.[\w-]+)(?: '(.*)')?\s+(?:w\d+ )?\[ ([\w-]+) \]", re.MULTILINE)


def mtr_outcomes(said):
    """How each test ended, by the name its runner takes: TEST or TEST,OPTIONS. One that passed, but after which a
    server complained, has two outcomes."""
    outcomes = {}
    for name, options, outcome in MTR_OUTCOME.findall(said):
        outcomes.setdefault(f"{name},{options}" if options else name, set()).add(outcome)
    return outcomes


def not_passed(tests, outcomes):
    """Tests no outcome of which is known, and outcomes other than passed."""
    missing = [test for test in tests if not any(f"{name},".startswith(f"{test},") for name in outcomes)]
    return missing + [f"{name}: {' '.join(sorted(ends))}" for name, ends in outcomes.items() if ends != {"pass"}]


def servers_served(log):
    """Each server whose end by exit is in the log has told there that hakmem served it, and there is one."""
    served = sum(1 for count in served_allocs(log) if count)
    return served >= max(1, log.count(b"mariadbd: Shutdown complete"))


@program("mariadb", does="MariaDB's own tests: joins, sorting, procedures, blobs, full text, partitions, recovery",
         version=("/usr/sbin/mariadbd", "--version"), needs={str(MTR): "mariadb-test", "setpriv": "util-linux"},
         limit_s=LONG_LIMIT_S)  # fmt: skip
def mariadb(session):
    as_account = unprivileged(session)
    # Tests look at what their programs print: only the servers print a line at their end, in their logs.
    options = ("--parallel=2", "--force", "--retry=0", "--max-test-fail=0", "--mysqld-env=HAKMEM_SS_OS_STATS=1")
    argv = ("env", f"--chdir={MTR.parent}", "perl", MTR.name, f"--vardir={session.directory}/var", *options)
    quiet = {"HAKMEM_SS_OS_STATS": "0"}
    said = session.run(*as_account([*argv, *MARIADB_TESTS]), env=quiet, compare=False, processes=0, statuses=(0, 1))
    said = said.decode(errors="replace")
    outcomes = mtr_outcomes(said)
    failed = not_passed(MARIADB_TESTS, outcomes)
    all_well = not failed and "\nCompleted: All " in said
    session.require(all_well, f"not passed: {', '.join(failed)}\n{said[-4000:]}")
    session.record("tests that passed", "\n".join(sorted(outcomes)).encode())
    session.note(f"{len(outcomes)} tests passed")
    for path in session.directory.glob("var/*/log/mysqld.*.err") if session.preload else ():
        log = path.read_bytes()
        session.require(servers_served(log), f"a server was not served by hakmem: {path}")
        session.add_proof(log)
