// jemalloc's settings: sources, messages, and what follows from them, in programs that are linked to the library under jemalloc's name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "run_program.h"

using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

namespace {

namespace fs = std::filesystem;

ProgramResult run(const std::string &program, std::vector<std::string> environment, const std::vector<std::string> &steps, int exit_code = 0) {
  std::vector<std::string> command = {PROGRAMS + program};
  command.insert(command.end(), steps.begin(), steps.end());
  ProgramResult r = run_program(command, environment);
  EXPECT_EQ(r.exit_code, exit_code) << r.err;
  return r;
}
ProgramResult with(const std::string &conf, const std::vector<std::string> &steps = {}, int exit_code = 0) {
  return run("plain", {"MALLOC_CONF=" + conf}, steps, exit_code);
}

TEST(JeConf, NothingIsSaidOfWhatIsUnderstood) {
  ProgramResult r = with(
      "dirty_decay_ms:5,muzzy_decay_ms:0,background_thread:false,narenas:4,tcache:true,lg_tcache_max:16,metadata_thp:auto,thp:default,"
      "abort_conf:true,stats_print:false,stats_print_opts:J,prof:false,prof_active:false,lg_prof_sample:20,prof_prefix:x,prof_final:false,"
      "prof_leak:false,zero:true,junk:free",
      {"i:opt.dirty_decay_ms", "i:opt.muzzy_decay_ms", "u:opt.narenas", "z:opt.tcache_max", "s:opt.metadata_thp", "b:opt.abort_conf",
       "s:opt.stats_print_opts", "b:opt.prof_active", "z:opt.lg_prof_sample", "s:opt.prof_prefix", "b:opt.zero", "s:opt.junk"});
  EXPECT_THAT(r.err, IsEmpty());
  EXPECT_EQ(r.out,
            "opt.dirty_decay_ms=5\nopt.muzzy_decay_ms=0\nopt.narenas=4\nopt.tcache_max=65536\nopt.metadata_thp=auto\nopt.abort_conf=1\n"
            "opt.stats_print_opts=J\nopt.prof_active=0\nopt.lg_prof_sample=20\nopt.prof_prefix=x\nopt.zero=1\nopt.junk=free\n");
}

// Of jemalloc 5.3.1. What has no meaning here is no reason to end a program.
TEST(JeConf, SettingsOfTodayAreUnderstood) {
  ProgramResult r = with(
      "abort_conf:true,bin_shards:1-160:16|161-512:8,slab_sizes:1-4096:17,narenas_ratio:2.5,tcache_ncached_max:16-64:8|128-128:4,"
      "hpa_purge_threshold_ratio:0.5,hpa_hugification_threshold_ratio:0.9,prof_unbias:true,calloc_madvise_threshold:1048576,"
      "debug_double_free_max_scan:8,disable_large_size_classes:false,experimental_hpa_start_huge_if_thp_always:false,experimental_hpa_enforce_hugify:true,"
      "experimental_hpa_max_purge_nhp:3,experimental_tcache_gc:false,hpa_hugify_sync:true,hpa_hugify_style:eager,hpa_purge_threshold:8192,"
      "hpa_min_purge_delay_ms:10,huge_arena_pac_thp:true,lg_san_uaf_align:12,process_madvise_max_batch:16,prof_bt_max:64,prof_pid_namespace:true,"
      "san_guard_small:0,san_guard_large:0",
      {"u:opt.prof_bt_max", "z:opt.calloc_madvise_threshold", "s:opt.hpa_hugify_style", "b:opt.disable_large_size_classes", "i:opt.lg_san_uaf_align"});
  EXPECT_THAT(r.err, IsEmpty());
  EXPECT_EQ(r.out, "opt.prof_bt_max=64\nopt.calloc_madvise_threshold=1048576\nopt.hpa_hugify_style=eager\nopt.disable_large_size_classes=0\n"
                   "opt.lg_san_uaf_align=12\n");
}

// As jemalloc 5.3 says it, once each.
TEST(JeConf, WhatIsNotUnderstoodIsALine) {
  const std::pair<const char *, const char *> cases[] = {
      {"bogus:1", "Invalid conf pair: bogus:1"},
      {"Tcache:true", "Invalid conf pair: Tcache:true"},
      {"dirty_decay_ms:10,bogus:", "Invalid conf pair: bogus:"},
      {"narenas:abc", "Invalid conf value: narenas:abc"},
      {"narenas:1:", "Invalid conf value: narenas:1:"},
      {"narenas:0", "Out-of-range conf value: narenas:0"},
      {"dirty_decay_ms:-2", "Out-of-range conf value: dirty_decay_ms:-2"},
      {"dirty_decay_ms:18446744072001", "Out-of-range conf value: dirty_decay_ms:18446744072001"},
      {"dirty_decay_ms:99999999999999999999999", "Invalid conf value: dirty_decay_ms:99999999999999999999999"},
      {"dirty_decay_ms:10 ", "Invalid conf value: dirty_decay_ms:10 "},
      {"dirty_decay_ms:", "Invalid conf value: dirty_decay_ms:"},
      {"tcache:1", "Invalid conf value: tcache:1"},
      {"thp:sometimes", "Invalid conf value: thp:sometimes"},
      {"junk:xyz", "Invalid conf value: junk:xyz"},
      {"narenas", "Conf string ends with key"},
      {"narenas:3,", "Conf string ends with comma"},
      {"narenas:3,,tcache:false", "Malformed conf string"},
      {" narenas:3", "Malformed conf string"},
      {"narenas=3", "Malformed conf string"}};
  for (auto [conf, said] : cases) EXPECT_EQ(with(conf).err, "<jemalloc>: " + std::string(said) + "\n") << conf;
}

TEST(JeConf, NumbersAreOfAnyBaseAndSomeAreClipped) {
  const std::tuple<const char *, const char *, const char *> cases[] = {
      {"dirty_decay_ms:0x10", "i:opt.dirty_decay_ms", "16"}, {"dirty_decay_ms:010", "i:opt.dirty_decay_ms", "8"},
      {"dirty_decay_ms:-1", "i:opt.dirty_decay_ms", "-1"},   {"dirty_decay_ms:7200000", "i:opt.dirty_decay_ms", "7200000"},
      {"lg_tcache_max:40", "z:opt.tcache_max", "8388608"},   {"tcache_max:16777216", "z:opt.tcache_max", "8388608"},
      {"lg_prof_sample:70", "z:opt.lg_prof_sample", "63"},   {"narenas:default", "u:opt.narenas", "1"},
      {"stats_print_opts:aabJJZx", "s:opt.stats_print_opts", "abJx"}};
  for (auto [conf, step, value] : cases) {
    ProgramResult r = with(conf, {step});
    EXPECT_EQ(r.out, std::string(step + 2) + "=" + value + "\n") << conf;
    EXPECT_THAT(r.err, IsEmpty());
  }
}

TEST(JeConf, AbortEndsTheProgramWhereverItStands) {
  for (const char *conf : {"abort_conf:true,bogus:1", "bogus:1,abort_conf:true"}) {
    ProgramResult r = with(conf, {}, -1);
    EXPECT_EQ(r.signal, SIGABRT);
    EXPECT_EQ(r.err, "<jemalloc>: Invalid conf pair: bogus:1\n<jemalloc>: Abort (abort_conf:true) on invalid conf value (see above).\n");
  }
  EXPECT_THAT(with("abort_conf:true,narenas:3").err, IsEmpty());
}

const char BROUGHT[] = "narenas:2,thp:never,bogus:x";

TEST(JeConf, TheEnvironmentIsAboveTheProgram) {
  ProgramResult r = run("brings", {"MALLOC_CONF=narenas:3"}, {"u:opt.narenas", "s:opt.thp"});
  EXPECT_EQ(r.out, "opt.narenas=3\nopt.thp=never\n");
  EXPECT_EQ(r.err, "<jemalloc>: Invalid conf pair: bogus:x\n");
  EXPECT_EQ(run("brings", {}, {"u:opt.narenas"}).out, "opt.narenas=2\n");
}

TEST(JeConf, ConfirmTellsSourcesAndSettings) {
  ProgramResult r = run("brings", {"MALLOC_CONF=confirm_conf:true,narenas:3"}, {});
  EXPECT_EQ(r.err,
            "<jemalloc>: malloc_conf #1 (string specified via --with-malloc-conf): \"\"\n"
            "<jemalloc>: malloc_conf #2 (string pointed to by the global variable malloc_conf): \"" + std::string(BROUGHT) + "\"\n"
            "<jemalloc>: -- Set conf value: narenas:2\n"
            "<jemalloc>: -- Set conf value: thp:never\n"
            "<jemalloc>: Invalid conf pair: bogus:x\n"
            "<jemalloc>: malloc_conf #3 (\"name\" of the file referenced by the symbolic link named /etc/malloc.conf): \"\"\n"
            "<jemalloc>: malloc_conf #4 (value of the environment variable MALLOC_CONF): \"confirm_conf:true,narenas:3\"\n"
            "<jemalloc>: -- Set conf value: confirm_conf:true\n"
            "<jemalloc>: -- Set conf value: narenas:3\n"
            "<jemalloc>: malloc_conf #5 (string pointed to by the global variable malloc_conf_2_conf_harder): \"\"\n");
}

TEST(JeConf, AProgramMayTakeTheMessages) {
  ProgramResult r = run("messages", {"MALLOC_CONF=bogus:1"}, {});
  EXPECT_EQ(r.out, "told: <jemalloc>: Invalid conf pair: bogus:1\n");
  EXPECT_THAT(r.err, IsEmpty());
}

TEST(JeConf, OptionsFollow) {
  const std::tuple<const char *, const char *, const char *> cases[] = {
      {"dirty_decay_ms:77", "h:DECAY_MS", "77"},       {"dirty_decay_ms:-1", "h:DECAY_MS", "3600000"},
      {"dirty_decay_ms:0", "h:DECAY_MS", "0"},         {"tcache:false", "h:TINY_HOT_RING_ENABLE", "0"},
      {"thp:always", "h:THP", "2"},                    {"thp:never", "h:THP", "0"},
      {"thp:default", "h:THP", "1"},                   {"background_thread:true", "h:BACKGROUND", "1"},
      {"prof:true", "h:HEAP_PROFILE", "1"},            {"prof:true,prof_active:false", "h:HEAP_PROFILE", "0"},
      {"prof_active:true", "h:HEAP_PROFILE", "0"},     {"prof:true,lg_prof_sample:12", "h:HEAP_PROFILE_RATE", "4096"},
      {"prof:true,lg_prof_sample:0", "h:HEAP_PROFILE_RATE", "1"}};
  for (auto [conf, step, value] : cases) EXPECT_EQ(with(conf, {step}).out, std::string(step + 2) + "=" + value + "\n") << conf;
  EXPECT_EQ(with("background_thread:true", {"threads"}).out, "threads=2\n");
}

TEST(JeConf, HakmemsOwnVariablesAreAbove) {
  ProgramResult r = run("plain", {"MALLOC_CONF=dirty_decay_ms:77,thp:never", "HAKMEM_DECAY_MS=5", "HAKMEM_THP=on", "HAKMEM_TINY_MAX_CLASS=9"},
                        {"h:DECAY_MS", "i:opt.dirty_decay_ms", "s:opt.thp", "h:TINY_MAX_CLASS"});
  EXPECT_EQ(r.out, "DECAY_MS=5\nopt.dirty_decay_ms=5\nopt.thp=always\nTINY_MAX_CLASS=9\n");
  EXPECT_THAT(r.err, IsEmpty());
}

TEST(JeConf, BlocksAreFilled) {
  auto filled = [](const std::string &conf, const std::string &small, const std::string &large) {
    std::string round = small + "\n" + large + "\n" + large + "\n";
    ProgramResult r = with(conf, {"fill"});
    EXPECT_EQ(r.out, round + round) << conf;
    EXPECT_THAT(r.err, IsEmpty());
  };
  filled("zero:true", "00 00 00 01", "00 00 00 00");
  filled("junk:alloc", "a5 00 a5 01", "a5 00 a5 00");
  filled("junk:true", "a5 00 a5 5a", "a5 00 a5 00");
  filled("junk:true,zero:true", "00 00 00 5a", "00 00 00 00");
  EXPECT_THAT(with("junk:free", {"fill"}).out, MatchesRegex(".. 00 .. 5a\n(.|\n)*"));
}

TEST(JeConf, StatisticsAtExit) {
  EXPECT_THAT(with("stats_print:true,stats_print_opts:mdablxeg").err,
              MatchesRegex("___ Begin jemalloc statistics ___\nAllocated: (.|\n)*--- End jemalloc statistics ---\n"));
  EXPECT_THAT(with("stats_print:true,stats_print_opts:J").err, StartsWith("{\"jemalloc\":{"));
  EXPECT_THAT(with("stats_print_opts:J").err, IsEmpty());
}

struct Directory {
  std::string path = "/tmp/hakmem-je-conf-XXXXXX";
  Directory() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
  ~Directory() { fs::remove_all(path); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto &f : fs::directory_iterator(path)) names.push_back(f.path().filename());
    return names;
  }
};

TEST(JeConf, TheLastProfileAndWhatIsLive) {
  Directory d;
  std::string prof = "prof:true,lg_prof_sample:0,prof_prefix:" + d.path + "/p";
  EXPECT_THAT(with(prof, {"leak"}).err, IsEmpty());
  EXPECT_THAT(d.files(), IsEmpty());
  EXPECT_THAT(with(prof + ",prof_final:true", {"leak"}).err, IsEmpty());
  ASSERT_THAT(d.files(), testing::ElementsAre(MatchesRegex("p\\.[0-9]+\\.0\\.f\\.heap")));
  std::ifstream file(d.path + "/" + d.files()[0]);
  std::string first;
  std::getline(file, first);
  EXPECT_EQ(first, "heap_v2/1");
  unsigned long bytes = 0, objects = 0;
  ProgramResult r = with(prof + ",prof_final:true,prof_leak:true", {"leak"});
  EXPECT_EQ(sscanf(r.err.c_str(), "<jemalloc>: Leak approximation summary: ~%lu bytes, ~%lu objects, >= ", &bytes, &objects), 2) << r.err;
  EXPECT_GE(bytes, 1000000u);
  EXPECT_LE(bytes, 1100000u);
  EXPECT_GE(objects, 100u);
  EXPECT_LE(objects, 120u);
  EXPECT_THAT(r.err, HasSubstr("\n<jemalloc>: Run jeprof on dump output for leak detail\n"));
  EXPECT_THAT(with(prof + ",prof_final:true,prof_leak_error:true", {"leak"}, 1).err,
              HasSubstr("<jemalloc>: Exiting with error code because memory leaks were detected\n"));
  EXPECT_EQ(d.files().size(), 3u);
  EXPECT_THAT(with("prof:true,prof_final:true,prof_leak:true,prof_prefix:", {"leak"}).err, IsEmpty()) << "no file, no report";
}

/* --- as root --- */

// A root directory with the program, what it loads, and a link that is no file's name.
TEST(JeConf, TheLinkIsBetweenTheProgramAndTheEnvironment) {
  if (geteuid() != 0) GTEST_SKIP() << "chroot takes root";
  Directory d;
  for (const std::string &loaded : std::vector<std::string>{PROGRAMS "brings", JE_LIBRARY}) {
    ProgramResult r = run_program({"/usr/bin/ldd", loaded});
    std::istringstream words(r.out);
    for (std::string word; words >> word;)
      if (word[0] == '/') {
        fs::create_directories(d.path + fs::path(word).parent_path().string());
        fs::copy_file(word, d.path + word, fs::copy_options::overwrite_existing);
      }
  }
  fs::copy_file(PROGRAMS "brings", d.path + "/program");
  fs::create_directories(d.path + "/etc");
  fs::create_symlink("narenas:5,tcache:false", d.path + "/etc/malloc.conf");
  ProgramResult r = run_program({"/usr/sbin/chroot", d.path, "/program", "u:opt.narenas", "s:opt.thp", "b:opt.tcache"}, {});
  if (r.exit_code == 125 || r.exit_code == 127) GTEST_SKIP() << r.err;
  EXPECT_EQ(r.out, "opt.narenas=5\nopt.thp=never\nopt.tcache=0\n") << r.err;
  r = run_program({"/usr/sbin/chroot", d.path, "/program", "u:opt.narenas", "b:opt.tcache"}, {"MALLOC_CONF=narenas:7"});
  EXPECT_EQ(r.out, "opt.narenas=7\nopt.tcache=0\n");
}

TEST(JeConf, PrivilegedProgramsIgnoreTheEnvironmentAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "making a setuid program takes root";
  Directory d;
  std::string copy = d.path + "/program";
  fs::copy_file(PROGRAMS "brings", copy);
  chmod(d.path.c_str(), 0755);
  ASSERT_EQ(chown(copy.c_str(), 65534, 65534), 0);
  ASSERT_EQ(chmod(copy.c_str(), 04755), 0);
  ProgramResult r = run_program({copy, "u:opt.narenas"}, {"MALLOC_CONF=narenas:7"});
  if (r.exit_code != 0) GTEST_SKIP() << "setuid programs cannot be run here: " << r.err;
  EXPECT_EQ(r.out, "opt.narenas=2\n") << "the variable was read (or the file system is nosuid)";
}

}  // namespace
