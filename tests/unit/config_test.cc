// The options table: the environment parser (in a process of its own each time), get and set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "hak.h"
#include "run_program.h"

using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;

namespace {

ProgramResult probe(const std::vector<std::string> &environment, const std::vector<std::string> &arguments = {}) {
  std::vector<std::string> command = {CONFIG_PROBE};
  command.insert(command.end(), arguments.begin(), arguments.end());
  ProgramResult r = run_program(command, environment);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r;
}

// Value of an option in the probe's listing; -1: not listed.
int64_t value(const ProgramResult &r, const std::string &name) {
  size_t at = ("\n" + r.out).find("\n" + name + "=");
  return at == std::string::npos ? -1 : atoll(r.out.c_str() + at + name.size() + 1);
}

size_t lines(const std::string &text) { return size_t(std::count(text.begin(), text.end(), '\n')); }

TEST(Config, DefaultsAreThoseOfTheTable) {
  ProgramResult r = probe({});
  EXPECT_THAT(r.err, IsEmpty());
  EXPECT_EQ(value(r, "HAKMEM_PROFILE"), 0);
  EXPECT_EQ(value(r, "HAKMEM_TINY_MAX_CLASS"), 7);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_ENABLE"), 1);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_C12"), 0);
  EXPECT_EQ(value(r, "HAKMEM_RESERVE_MB"), 1048576);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_C13"), -1);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_C0"), -1);
}

TEST(Config, ValidValuesAreTaken) {
  ProgramResult r = probe({"HAKMEM_TINY_MAX_CLASS=12", "HAKMEM_TINY_HOT_RING_C3=128", "HAKMEM_TINY_HOT_RING_C12=16384",
                           "HAKMEM_TINY_HOT_RING_ENABLE=0", "HAKMEM_SS_OS_STATS=1", "HAKMEM_RESERVE_MB=16"});
  EXPECT_EQ(value(r, "HAKMEM_TINY_MAX_CLASS"), 12);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_C3"), 128);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_C12"), 16384);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_C1"), 0);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_ENABLE"), 0);
  EXPECT_EQ(value(r, "HAKMEM_SS_OS_STATS"), 1);
  EXPECT_EQ(value(r, "HAKMEM_RESERVE_MB"), 16);
  EXPECT_THAT(r.err.substr(0, r.err.find("[SS_OS_STATS]")), IsEmpty());
}

TEST(Config, BadValuesWarnOnceAndTheDefaultStands) {
  for (const char *bad : {"2", "13", "-1", "+5", " 5", "5 ", "", "7x", "0x5", "99999999999999999999", "on"}) {
    ProgramResult r = probe({std::string("HAKMEM_TINY_MAX_CLASS=") + bad});
    EXPECT_EQ(value(r, "HAKMEM_TINY_MAX_CLASS"), 7) << bad;
    EXPECT_EQ(lines(r.err), 1u) << bad;
    EXPECT_THAT(r.err, HasSubstr("HAKMEM_TINY_MAX_CLASS"));
    EXPECT_THAT(r.err, HasSubstr("from 3 to 12"));
    EXPECT_THAT(r.err, HasSubstr("using 7"));
  }
}

TEST(Config, LongNamesAndValuesAreShortenedInMessages) {
  const std::string ones(64, '1'), rest = " is not a size such as 65536, 64K, 512M or 2G: using 0\n";
  EXPECT_EQ(probe({"HAKMEM_LIMIT=" + ones}).err, "hakmem: HAKMEM_LIMIT=" + ones + rest);
  for (size_t more : {1, 936, 960, 100000})
    EXPECT_EQ(probe({"HAKMEM_LIMIT=" + ones + std::string(more, '1')}).err, "hakmem: HAKMEM_LIMIT=" + ones + "…" + rest) << more;
  const std::string odd = ones.substr(1);  // a character of two bytes stays whole
  EXPECT_EQ(probe({"HAKMEM_LIMIT=" + odd + "é1"}).err, "hakmem: HAKMEM_LIMIT=" + odd + "…" + rest);
  EXPECT_EQ(probe({"HAKMEM_LIMIT=" + std::string(100, '\x80')}).err, "hakmem: HAKMEM_LIMIT=…" + rest);
  EXPECT_EQ(probe({"HAKMEM_" + std::string(2000, 'X') + "=1"}).err,
            "hakmem: HAKMEM_" + std::string(57, 'X') + "… is not an option of this version: ignored\n");
  for (const char *name : {"HAKMEM_PROFILE", "HAKMEM_TINY_MAX_CLASS", "HAKMEM_GUARD_SAMPLE"}) {
    ProgramResult r = probe({std::string(name) + "=" + std::string(2000, 'x')});
    EXPECT_THAT(r.err, HasSubstr(std::string("hakmem: ") + name + "=" + std::string(64, 'x') + "… is "));
    EXPECT_EQ(lines(r.err), 1u);
  }
}

TEST(Config, SizesHaveUnits) {
  const std::pair<const char *, int64_t> sizes[] = {{"0", 0}, {"65536", 65536}, {"64K", 65536}, {"64k", 65536},
      {"512M", 512LL << 20}, {"2G", 2LL << 30}, {"3g", 3LL << 30}, {"1T", 1LL << 40}, {"0K", 0},
      {"8388607T", 8388607LL << 40}};
  for (auto [text, bytes] : sizes) {
    for (const char *name : {"HAKMEM_LIMIT", "HAKMEM_RSS_TARGET"}) {
      ProgramResult r = probe({std::string(name) + "=" + text});
      EXPECT_EQ(value(r, name), bytes) << text;
      EXPECT_THAT(r.err, IsEmpty()) << text;
    }
  }
}

TEST(Config, OnlyTheTargetTakesAPercentage) {
  EXPECT_EQ(value(probe({"HAKMEM_RSS_TARGET=80%"}), "HAKMEM_RSS_TARGET"), -80);
  EXPECT_EQ(value(probe({"HAKMEM_RSS_TARGET=100%"}), "HAKMEM_RSS_TARGET"), -100);
  for (const char *bad : {"0%", "101%", "102%", "18446744073709551515%", "80%%", "%", "8 0%", "", "-101", "Auto", "autoM", "offK", "none"}) {
    ProgramResult r = probe({std::string("HAKMEM_RSS_TARGET=") + bad});
    EXPECT_EQ(value(r, "HAKMEM_RSS_TARGET"), HAK_SIZE_AUTO) << bad;
    EXPECT_EQ(r.err, std::string("hakmem: HAKMEM_RSS_TARGET=") + bad +
                         " is not a size such as 65536, 64K, 512M or 2G, 1% to 100%, auto or off: using auto\n");
  }
  ProgramResult r = probe({"HAKMEM_LIMIT=80%"});
  EXPECT_EQ(value(r, "HAKMEM_LIMIT"), 0);
  EXPECT_EQ(r.err, "hakmem: HAKMEM_LIMIT=80% is not a size such as 65536, 64K, 512M or 2G: using 0\n");
}

TEST(Config, TheTargetIsAutoUnlessItIsOff) {
  EXPECT_EQ(value(probe({}), "HAKMEM_RSS_TARGET"), HAK_SIZE_AUTO);
  const std::pair<const char *, int64_t> words[] = {{"auto", HAK_SIZE_AUTO}, {"off", 0}, {"0", 0}};
  for (auto [word, number] : words) {
    ProgramResult r = probe({std::string("HAKMEM_RSS_TARGET=") + word});
    EXPECT_EQ(value(r, "HAKMEM_RSS_TARGET"), number) << word;
    EXPECT_THAT(r.err, IsEmpty()) << word;
    EXPECT_EQ(lines(probe({std::string("HAKMEM_LIMIT=") + word}).err), number == 0 && *word == '0' ? 0u : 1u) << word;
  }
}

TEST(Config, BadSizesWarnOnce) {
  for (const char *bad : {"", "M", "-1", "+1", " 1", "1 ", "1 M", "1MB", "1KK", "1P", "1.5G", "0x10", "8388608T",
                          "9223372036854775808", "99999999999999999999G", "on"}) {
    ProgramResult r = probe({std::string("HAKMEM_LIMIT=") + bad});
    EXPECT_EQ(value(r, "HAKMEM_LIMIT"), 0) << bad;
    EXPECT_EQ(lines(r.err), 1u) << bad;
    EXPECT_THAT(r.err, HasSubstr("HAKMEM_LIMIT=" + std::string(bad) + " is not a size"));
  }
}

TEST(Config, CountsTakeNoUnits) {
  for (const char *bad : {"16K", "16%"}) EXPECT_THAT(probe({std::string("HAKMEM_RESERVE_MB=") + bad}).err, HasSubstr("is not a number"));
}

TEST(Config, VerboseShowsSizesReadably) {
  const std::pair<const char *, const char *> sizes[] = {{"65536", "64K"}, {"2048M", "2G"}, {"1025", "1025"}, {"1536M", "1536M"},
                                                         {"80%", "80%"}, {"0", "0"}, {"off", "0"}, {"auto", "auto"}, {"4096G", "4T"}, {"4096T", "4096T"}};
  for (auto [given, shown] : sizes)
    EXPECT_THAT(probe({"HAKMEM_VERBOSE=1", std::string("HAKMEM_RSS_TARGET=") + given}).err,
                HasSubstr(std::string("hakmem: HAKMEM_RSS_TARGET=") + shown + "\n"));
}

TEST(Config, SizesAreSetInBytes) {
  ProgramResult r = probe({}, {"HAKMEM_LIMIT=1048576", "HAKMEM_LIMIT=-1", "HAKMEM_RSS_TARGET=-80", "HAKMEM_RSS_TARGET=-102", "HAKMEM_RSS_TARGET=-101"});
  std::string e(std::to_string(EINVAL));
  EXPECT_THAT(r.out, HasSubstr("LIMIT: set 0, get 0, value 1048576\n"));
  EXPECT_THAT(r.out, HasSubstr("LIMIT: set " + e + ", get 0, value 1048576\n"));
  EXPECT_THAT(r.out, HasSubstr("TARGET: set 0, get 0, value -80\n"));
  EXPECT_THAT(r.out, HasSubstr("TARGET: set " + e + ", get 0, value -80\n"));
  EXPECT_THAT(r.out, HasSubstr("TARGET: set 0, get 0, value -101\n")) << "auto";
}

TEST(Config, UnknownNamesWarnOnce) {
  ProgramResult r = probe({"HAKMEM_NO_SUCH_THING=1"});
  EXPECT_EQ(lines(r.err), 1u);
  EXPECT_THAT(r.err, HasSubstr("HAKMEM_NO_SUCH_THING is not an option"));
  for (const char *near : {"HAKMEM_TINY_HOT_RING_C13=1", "HAKMEM_TINY_HOT_RING_C0=1", "HAKMEM_TINY_HOT_RING_C=1",
                           "HAKMEM_TINY_HOT_RING_C01=1", "HAKMEM_=1", "HAKMEM_VERBOS=1", "HAKMEM_VERBOSE2=1"}) {
    EXPECT_EQ(lines(probe({near}).err), 1u) << near;
  }
  EXPECT_THAT(probe({"HAKMEMX=1", "XHAKMEM_Y=1"}).err, IsEmpty());
}

TEST(Config, UnknownNamesOfAnyLengthWarn) {
  ProgramResult r = probe({"HAKMEM_" + std::string(200, 'A') + "=1"});
  EXPECT_EQ(lines(r.err), 1u) << "a long unknown name is ignored in silence";
}

TEST(Config, RetiredNamesNameTheirSuccessor) {
  const std::pair<const char *, const char *> retired[] = {
      {"HAKMEM_BENCH_FAST_MODE", "bench-fast build"},
      {"HAKMEM_TINY_FRONT_ENABLE_ULTRAHOT", "HAKMEM_TINY_HOT_RING_ENABLE"},
      {"HAKMEM_TINY_FRONT_HEAPV2_ONLY", "HAKMEM_TINY_HOT_RING_ENABLE"},
      {"HAKMEM_TINY_FRONT_DISABLE_HEAPV2", "HAKMEM_TINY_HOT_RING_ENABLE"},
      {"HAKMEM_ALLOC_PASSDOWN_SSOT", "nothing"},
      {"HAKMEM_TINY_SS_PRECHARGE_C3", "HAKMEM_TINY_PREWARM_C<n>"},
      {"HAKMEM_TINY_SS_PRECHARGE_C12", "HAKMEM_TINY_PREWARM_C<n>"},
  };
  for (auto [name, successor] : retired) {
    ProgramResult r = probe({std::string(name) + "=1"});
    EXPECT_EQ(lines(r.err), 1u) << name;
    EXPECT_THAT(r.err, HasSubstr("retired"));
    EXPECT_THAT(r.err, HasSubstr(name));
    EXPECT_THAT(r.err, HasSubstr(successor));
  }
  EXPECT_THAT(probe({"HAKMEM_TINY_SS_PRECHARGE_CX=1"}).err, Not(HasSubstr("retired")));
}

TEST(Config, ProfileNames) {
  const std::pair<const char *, int> names[] = {{"balanced", 0}, {"speed", 1}, {"lean", 2}, {"hardened", 3},
                                                {"MIXED_TINYV3_C7_BALANCED", 0}, {"MIXED_TINYV3_C7_SAFE", 1}};
  for (auto [name, index] : names) {
    ProgramResult r = probe({std::string("HAKMEM_PROFILE=") + name});
    EXPECT_EQ(value(r, "HAKMEM_PROFILE"), index) << name;
    if (index == 3)
      EXPECT_EQ(r.err, "hakmem: HAKMEM_PROFILE=hardened needs libhakmem-hardened.so: this library behaves as balanced\n");
    else
      EXPECT_THAT(r.err, IsEmpty()) << name;
  }
  for (const char *bad : {"fast", "", "Balanced", "1"}) {
    ProgramResult r = probe({std::string("HAKMEM_PROFILE=") + bad});
    EXPECT_EQ(value(r, "HAKMEM_PROFILE"), 0);
    EXPECT_EQ(lines(r.err), 1u) << bad;
    EXPECT_THAT(r.err, HasSubstr("balanced, speed, lean, hardened"));
  }
}

TEST(Config, SpeedPrewarmsAndSingleVariablesWin) {
  ProgramResult r = probe({"HAKMEM_PROFILE=speed"});
  for (int n = 1; n <= 12; n++)
    EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C" + std::to_string(n)), n <= 3 ? 128 : n <= 5 ? 64 : 0) << n;
  // Whatever the order in the environment.
  r = probe({"HAKMEM_TINY_PREWARM_C2=7", "HAKMEM_PROFILE=speed"});
  EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C1"), 128);
  EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C2"), 7);
}

TEST(Config, PrewarmAllFillsWhatHasNoValueOfItsOwn) {
  ProgramResult r = probe({"HAKMEM_TINY_PREWARM_ALL=10", "HAKMEM_TINY_PREWARM_C2=7"});
  EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C1"), 10);
  EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C2"), 7);
  EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C12"), 10);
}

TEST(Config, PrewarmZeroIsAValueOfItsOwn) {
  ProgramResult r = probe({"HAKMEM_TINY_PREWARM_ALL=10", "HAKMEM_TINY_PREWARM_C2=0"});
  EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C2"), 0);
}

TEST(Config, ReportsAskedForAreInThere) {
  EXPECT_THAT(probe({"HAKMEM_SS_OS_STATS=1"}).err, MatchesRegex("\\[SS_OS_STATS\\] alloc=.* lean_retire=[0-9]+\n"));
  EXPECT_THAT(probe({"HAKMEM_EXTERNAL_GUARD_STATS=1"}).err, HasSubstr("[EXTERNAL_GUARD] total=0 "));
  EXPECT_THAT(probe({"HAKMEM_VERBOSE=1"}).err, HasSubstr("HAKMEM_VERBOSE=1\n"));
}

TEST(Config, DumpTurnsMetricsOn) {
  EXPECT_EQ(value(probe({"HAKMEM_TINY_FRONT_DUMP=1"}), "HAKMEM_TINY_FRONT_METRICS"), 1);
}

TEST(Config, SetAndGet) {
  ProgramResult r = probe({}, {"HAKMEM_EXTERNAL_GUARD_LOG=1", "HAKMEM_EXTERNAL_GUARD_LOG=2", "HAKMEM_VERBOSE=1",
                               "HAKMEM_VERBOSE=9", "HAKMEM_NOTHING=1", "HAKMEM_TINY_HOT_RING_C3=64"});
  std::string e(std::to_string(EINVAL)), busy(std::to_string(EBUSY));
  EXPECT_THAT(r.out, HasSubstr("GUARD_LOG: set 0, get 0, value 1\n"));
  EXPECT_THAT(r.out, HasSubstr("GUARD_LOG: set " + e + ", get 0, value 1\n"));
  EXPECT_THAT(r.out, HasSubstr("VERBOSE: set " + busy + ", get 0, value 0\n"));
  EXPECT_THAT(r.out, HasSubstr("VERBOSE: set " + e + ", get 0, value 0\n"));
  EXPECT_THAT(r.out, HasSubstr("NOTHING: set " + e + ", get " + e + ", value -1\n"));
  EXPECT_THAT(r.out, HasSubstr("HOT_RING_C3: set " + busy + ", get 0, value 0\n"));
  EXPECT_EQ(hak_config_set(nullptr, 1), EINVAL);
  int64_t v;
  EXPECT_EQ(hak_config_get(nullptr, &v), EINVAL);
  EXPECT_EQ(hak_config_get("HAKMEM_VERBOSE", nullptr), EINVAL);
}

TEST(Config, TableIsSound) {
  std::vector<std::string> names;
  hak_config_visit(
      [](const hak_option_row *row, void *context) {
        EXPECT_THAT(row->name, MatchesRegex("HAKMEM_[A-Z0-9_]+"));
        EXPECT_LE(row->lowest, row->initial) << row->name;
        EXPECT_LE(row->initial, row->highest) << row->name;
        EXPECT_NE(row->text, nullptr);
        static_cast<std::vector<std::string> *>(context)->push_back(row->name);
        return true;
      },
      &names);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end()) << "two options of one name";
  EXPECT_GT(names.size(), 24u);
}

TEST(Config, VerboseListsEverySetting) {
  testing::internal::CaptureStderr();
  hak_config_print();
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("HAKMEM_PROFILE=balanced\n"));
  EXPECT_THAT(text, HasSubstr("HAKMEM_TINY_HOT_RING_C12=0\n"));
}

TEST(Config, SetuidProgramsIgnoreTheEnvironment) {
  if (geteuid() != 0) GTEST_SKIP() << "making a setuid program takes root";
#if HAKMEM_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers do not run in setuid programs";
#endif
  char directory[] = "/tmp/hakmem-setuid-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  std::string copy = std::string(directory) + "/probe";
  {
    std::ifstream in(CONFIG_PROBE, std::ios::binary);
    std::ofstream out(copy, std::ios::binary);
    out << in.rdbuf();
  }
  chmod(directory, 0755);
  bool made = chown(copy.c_str(), 65534, 65534) == 0 && chmod(copy.c_str(), 04755) == 0;
  ProgramResult r = run_program({copy}, {"HAKMEM_TINY_MAX_CLASS=9", "HAKMEM_NO_SUCH_THING=1"});
  unlink(copy.c_str());
  rmdir(directory);
  if (!made || value(r, "HAKMEM_TINY_MAX_CLASS") == -1) GTEST_SKIP() << "setuid programs cannot be run here";
  EXPECT_EQ(value(r, "HAKMEM_TINY_MAX_CLASS"), 7) << "the variable was read (or the file system is nosuid)";
  EXPECT_THAT(r.err, IsEmpty());
}

/* --- hakmem_conf --- */

ProgramResult brings(const std::string &conf, std::vector<std::string> environment = {}) {
  environment.push_back("PROBE_CONF=" + conf);
  return probe(environment);
}

TEST(Conf, HasTheEnvironmentsNamesInLowerCase) {
  ProgramResult r = brings("decay_ms=77,tiny_hot_ring_c3=128,rss_target=80%,thp=on,HAKMEM_LIMIT=2G");
  EXPECT_THAT(r.err, IsEmpty());
  EXPECT_EQ(value(r, "HAKMEM_DECAY_MS"), 77);
  EXPECT_EQ(value(r, "HAKMEM_TINY_HOT_RING_C3"), 128);
  EXPECT_EQ(value(r, "HAKMEM_RSS_TARGET"), -80);
  EXPECT_EQ(value(r, "HAKMEM_THP"), HAK_THP_ON);
  EXPECT_EQ(value(r, "HAKMEM_LIMIT"), 2LL << 30);
}

TEST(Conf, MayBeEmpty) {
  for (const char *empty : {"", ",", ",,,"}) EXPECT_THAT(brings(empty).err, IsEmpty());
  EXPECT_EQ(value(brings(",decay_ms=77,"), "HAKMEM_DECAY_MS"), 77);
}

TEST(Conf, TheEnvironmentIsAboveItWhereItIsValid) {
  EXPECT_EQ(value(brings("decay_ms=77", {"HAKMEM_DECAY_MS=5"}), "HAKMEM_DECAY_MS"), 5);
  EXPECT_EQ(value(brings("decay_ms=77", {"HAKMEM_DECAY_MS=soon"}), "HAKMEM_DECAY_MS"), 77);
  EXPECT_EQ(value(brings("profile=speed", {"HAKMEM_PROFILE=balanced"}), "HAKMEM_DECAY_MS"), 1000);
}

TEST(Conf, AnOptionsOwnPieceIsAboveAProfile) {
  for (const char *conf : {"profile=speed,decay_ms=77", "decay_ms=77,profile=speed"}) {
    ProgramResult r = brings(conf);
    EXPECT_EQ(value(r, "HAKMEM_DECAY_MS"), 77) << conf;
    EXPECT_EQ(value(r, "HAKMEM_TINY_PREWARM_C1"), 128) << conf;
  }
  EXPECT_EQ(value(brings("decay_ms=77", {"HAKMEM_PROFILE=speed"}), "HAKMEM_DECAY_MS"), 77);
}

TEST(Conf, OfTwoTheLastIsValid) { EXPECT_EQ(value(brings("decay_ms=1,decay_ms=2"), "HAKMEM_DECAY_MS"), 2); }

TEST(Conf, BadPiecesAreOneLineEach) {
  const std::string x(3000, 'x'), shown(64, 'x');
  const std::pair<std::string, std::string> bad[] = {
      {"decay_ms=soon", "HAKMEM_DECAY_MS=soon is not a number from 0 to 3600000: using 1000"},
      {"decay_ms=", "HAKMEM_DECAY_MS= is not a number from 0 to 3600000: using 1000"},
      {"decay_ms", "decay_ms has no value: ignored"},
      {" decay_ms=1", "HAKMEM_ DECAY_MS is not an option of this version: ignored"},
      {"=1", "HAKMEM_ is not an option of this version: ignored"},
      {"thp=maybe", "HAKMEM_THP=maybe is not one of off, auto, on: using auto"},
      {"heap_profile_prefix=" + x, "HAKMEM_HEAP_PROFILE_PREFIX has no or more than 1023 bytes: using hakmem"},
      {"limit=" + x, "HAKMEM_LIMIT=" + shown + "… is not a size such as 65536, 64K, 512M or 2G: using 0"},
      {x, shown + "… has no value: ignored"},
      {"bench_fast_mode=1", "HAKMEM_BENCH_FAST_MODE is retired; in its place: the bench-fast build (cmake --preset bench-fast)"}};
  for (const auto &[conf, said] : bad) {
    ProgramResult r = brings(conf + ",tiny_max_class=9");
    EXPECT_EQ(r.err, "hakmem: hakmem_conf: " + said + "\n");
    EXPECT_EQ(value(r, "HAKMEM_TINY_MAX_CLASS"), 9) << "what follows is read: " << conf;
  }
}

/* --- the listing --- */

struct Listed {
  std::string value, initial;
  int origin, live, text;
};

std::map<std::string, Listed> listed(const std::vector<std::string> &environment) {
  ProgramResult r = probe(environment, {"--list"});
  EXPECT_THAT(r.err, IsEmpty());
  std::map<std::string, Listed> all;
  std::istringstream rows(r.out);
  for (std::string row; std::getline(rows, row);) {
    size_t equals = row.find('='), first = row.find('|'), second = row.find('|', first + 1);
    Listed l{row.substr(equals + 1, first - equals - 1), row.substr(first + 1, second - first - 1), -1, -1, -1};
    EXPECT_EQ(sscanf(row.c_str() + second, "|%d|%d|%d", &l.origin, &l.live, &l.text), 3) << row;
    all[row.substr(0, equals)] = l;
  }
  return all;
}

TEST(OptionList, DefaultsAreOfNobody) {
  std::map<std::string, Listed> all = listed({});
  EXPECT_GT(all.size(), 50u);
  for (const auto &[name, option] : all) {
    EXPECT_EQ(option.origin, HAKMEM_ORIGIN_DEFAULT) << name;
    EXPECT_EQ(option.value, option.initial) << name;
  }
  EXPECT_EQ(all["HAKMEM_PROFILE"].value, "balanced");
  EXPECT_EQ(all["HAKMEM_PROFILE"].live, 0);
  EXPECT_EQ(all["HAKMEM_RSS_TARGET"].value, "auto");
  EXPECT_EQ(all["HAKMEM_RSS_TARGET"].live, 1);
  EXPECT_EQ(all["HAKMEM_HEAP_PROFILE_PREFIX"].value, "hakmem");
  EXPECT_EQ(all["HAKMEM_HEAP_PROFILE_PREFIX"].text, 1);
}

const std::vector<std::string> OF_ALL_KINDS = {
    "HAKMEM_THP=on", "HAKMEM_DECAY_MS=77", "HAKMEM_GUARD_SAMPLE=1/1000", "HAKMEM_RSS_TARGET=80%", "HAKMEM_LIMIT=1536M",
    "HAKMEM_HEAP_PROFILE_RATE=12345", "HAKMEM_HEAP_PROFILE_PREFIX=/tmp/a b", "HAKMEM_TINY_HOT_RING_C3=128"};

TEST(OptionList, TheEnvironmentsAreAsTheyWereWritten) {
  std::map<std::string, Listed> all = listed(OF_ALL_KINDS);
  size_t from_environment = 0;
  for (const auto &[name, option] : all) from_environment += option.origin == HAKMEM_ORIGIN_ENVIRONMENT;
  EXPECT_EQ(from_environment, OF_ALL_KINDS.size());
  for (const std::string &entry : OF_ALL_KINDS) {
    const Listed &option = all[entry.substr(0, entry.find('='))];
    EXPECT_EQ(option.value, entry.substr(entry.find('=') + 1));
    EXPECT_EQ(option.origin, HAKMEM_ORIGIN_ENVIRONMENT) << entry;
  }
}

// A listing is an environment: the program that gets it has the same values.
TEST(OptionList, ValuesCanBeGivenAsTheyAreListed) {
  std::vector<std::string> given = OF_ALL_KINDS;
  given.push_back("HAKMEM_PROFILE=speed");
  std::map<std::string, Listed> all = listed(given);
  std::vector<std::string> environment;
  for (const auto &[name, option] : all)
    if (name != "HAKMEM_SS_OS_STATS" && name != "HAKMEM_VERBOSE") environment.push_back(name + "=" + option.value);
  for (const auto &[name, option] : listed(environment)) EXPECT_EQ(option.value, all[name].value) << name;
}

TEST(OptionList, AnotherOptionsDoing) {
  std::map<std::string, Listed> all = listed({"HAKMEM_PROFILE=speed", "HAKMEM_TINY_PREWARM_C2=7"});
  EXPECT_EQ(all["HAKMEM_PROFILE"].origin, HAKMEM_ORIGIN_ENVIRONMENT);
  EXPECT_EQ(all["HAKMEM_DECAY_MS"].origin, HAKMEM_ORIGIN_IMPLIED);
  EXPECT_EQ(all["HAKMEM_TINY_PREWARM_C1"].origin, HAKMEM_ORIGIN_IMPLIED);
  EXPECT_EQ(all["HAKMEM_TINY_PREWARM_C2"].origin, HAKMEM_ORIGIN_ENVIRONMENT);
  EXPECT_EQ(all["HAKMEM_TINY_PREWARM_C6"].origin, HAKMEM_ORIGIN_DEFAULT);
  all = listed({"HAKMEM_PROFILE=lean", "HAKMEM_TINY_PREWARM_C2=7", "HAKMEM_TINY_FRONT_DUMP=1"});
  EXPECT_EQ(all["HAKMEM_TINY_PREWARM_C2"].value, "0") << "lean mode prewarms nothing";
  for (const char *name : {"HAKMEM_TINY_PREWARM_C2", "HAKMEM_SS_MEM_LEAN", "HAKMEM_TINY_FRONT_METRICS"})
    EXPECT_EQ(all[name].origin, HAKMEM_ORIGIN_IMPLIED) << name;
}

TEST(OptionList, TheProgramsAreItsOwn) {
  std::map<std::string, Listed> all = listed({"PROBE_CONF=decay_ms=77,thp=on", "HAKMEM_THP=off"});
  EXPECT_EQ(all["HAKMEM_DECAY_MS"].value, "77");
  EXPECT_EQ(all["HAKMEM_DECAY_MS"].origin, HAKMEM_ORIGIN_PROGRAM);
  EXPECT_EQ(all["HAKMEM_THP"].value, "off");
  EXPECT_EQ(all["HAKMEM_THP"].origin, HAKMEM_ORIGIN_ENVIRONMENT);
  EXPECT_EQ(all["HAKMEM_LIMIT"].origin, HAKMEM_ORIGIN_DEFAULT);
}

TEST(OptionList, WhatIsRefusedIsOfNobody) {
  ProgramResult r = probe({"HAKMEM_DECAY_MS=soon"}, {"--list"});
  std::string initial = listed({})["HAKMEM_DECAY_MS"].value;
  EXPECT_THAT(r.out, HasSubstr("HAKMEM_DECAY_MS=" + initial + "|" + initial + "|0|"));
}

}  // namespace
