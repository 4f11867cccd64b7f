#include "ledger.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "finding.h"
#include "hakmem/hakmem.h"

/* Where the compiler puts the counters of covered code; the linker names its ends. */
extern "C" {
extern char __start___sancov_cntrs[] __attribute__((weak));
extern char __stop___sancov_cntrs[] __attribute__((weak));
}

namespace {

constexpr unsigned kChildSeconds = 30; /* an input takes milliseconds; this is a hang */

Ledger *ledger;
char *shared_counters;

size_t counters_bytes() { return static_cast<size_t>(__stop___sancov_cntrs - __start___sancov_cntrs); }

void *share(size_t bytes) {
  void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("fuzz: mmap");
    exit(2);
  }
  return p;
}

void save_counters() { std::memcpy(shared_counters, __start___sancov_cntrs, counters_bytes()); }

/* Returns, and abort() goes on to end the process. */
void on_abort(int) { save_counters(); }

[[noreturn]] void be_child(int output, const std::function<void(Ledger *)> &body) {
  dup2(output, STDERR_FILENO);
  signal(SIGABRT, on_abort);
  signal(SIGALRM, SIG_DFL);
  alarm(kChildSeconds);
  findings_end_child();
  body(ledger);
  save_counters();
  _exit(0);
}

std::string read_all(int fd) {
  std::string text;
  char buf[4096];
  lseek(fd, 0, SEEK_SET);
  for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;) text.append(buf, static_cast<size_t>(n));
  return text;
}

/* How far behind a request, or before a slab's first block, the hardened build looks for what was written there. */
constexpr size_t kWatchedBytes = 64;

/* "hakmem: <what was found>: <address> (class <size> bytes), seen <where> [process …"; the class where it is known. */
struct Report {
  bool of_contents; /* what was written, not what was freed */
  uintptr_t address;
  size_t block_size;
};

/* False if that is not what the line is. */
bool read_report(const std::string &line, Report *report) {
  static const struct {
    const char *text;
    bool of_contents;
  } found[] = {{"double free: the block is already free", false},
               {"invalid free: the address is not the start of a block", false},
               {"invalid or double free: the address lies in free memory", false},
               {"sized free: the size given is not that of the block", false},
               {"invalid free: no block of hakmem's is there", false},
               {"overflow: bytes behind the block were written", true},
               {"underflow: bytes before the block were written", true},
               {"use after free: the block was written after it was freed", true}};
  for (const auto &f : found) {
    std::string head = std::string("hakmem: ") + f.text + ": 0x";
    if (line.compare(0, head.size(), head) != 0) continue;
    size_t seen = line.find(", seen "), process = line.find(" [process "), size = line.find(" (class ");
    if (seen == std::string::npos || process == std::string::npos || seen > process) return false;
    report->of_contents = f.of_contents;
    report->address = std::strtoul(line.c_str() + head.size(), nullptr, 16);
    report->block_size = size < seen ? std::strtoul(line.c_str() + size + 8, nullptr, 10) : 0;
    return true;
  }
  return false;
}

bool is_justified(const Report &report) {
  if (!report.of_contents) return ledger_has(ledger, reinterpret_cast<const void *>(report.address));
  auto *from = reinterpret_cast<const void *>(report.address - kWatchedBytes);
  return ledger_has_written(ledger, from, kWatchedBytes + report.block_size + kWatchedBytes);
}

/* "" or what is wrong with a child that ended by SIGABRT. */
std::string judge_report(const std::string &text) {
  unsigned reports = 0;
  std::string wrong;
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    if (end == std::string::npos) return "an unfinished line";
    std::string line = text.substr(at, end - at);
    if (line.compare(0, 16, "[EXTERNAL_GUARD]") == 0 || line.compare(0, 25, "hakmem: external pointer:") == 0) continue;
    Report report;
    if (!read_report(line, &report)) return "a line that is no report: " + line;
    if (!is_justified(report)) wrong = "an address that was not misused: " + line;
    reports++;
  }
  if (reports != 1) return std::to_string(reports) + " reports";
  return wrong;
}

std::string judge(int status, const std::string &text) {
  if (WIFEXITED(status)) {
    int code = WEXITSTATUS(status);
    if (code == 0) return "";
    return code == kFindingExit ? "in the child" : "the child exited with " + std::to_string(code);
  }
  if (WTERMSIG(status) == SIGABRT) return judge_report(text);
  if (WTERMSIG(status) == SIGALRM) return "the child hung";
  return "the child was ended by signal " + std::to_string(WTERMSIG(status));
}

}  // namespace

bool ledger_has(const Ledger *l, const void *p) {
  for (unsigned i = 0; i < l->count; i++) {
    if (l->misused[i] == reinterpret_cast<uintptr_t>(p)) return true;
  }
  return false;
}

bool ledger_enter(Ledger *l, const void *p) {
  if (ledger_has(l, p)) return true;
  if (l->count == kMisusedMax) return false;
  l->misused[l->count++] = reinterpret_cast<uintptr_t>(p);
  return true;
}

bool ledger_has_written(const Ledger *l, const void *p, size_t bytes) {
  uintptr_t begin = reinterpret_cast<uintptr_t>(p), end = begin + bytes;
  for (unsigned i = 0; i < l->written_count; i++) {
    if (l->written[i].begin < end && begin < l->written[i].end) return true;
  }
  return false;
}

bool ledger_enter_written(Ledger *l, const void *p, size_t bytes) {
  if (l->written_count == kMisusedMax) return false;
  uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  l->written[l->written_count++] = {begin, begin + bytes};
  return true;
}

void run_in_child(const std::function<void(Ledger *)> &body) {
  static int output = -1;
  if (output < 0) {
    output = memfd_create("child-stderr", MFD_CLOEXEC);
    ledger = static_cast<Ledger *>(share(sizeof *ledger));
    /* The first blocks of the hardened build are guarded: faults and reports of another kind (tests/harden/first_blocks_test.cc). */
    void *first[64];
    for (void *&p : first) p = hakmem_malloc(1);
    for (void *p : first) hakmem_free(p);
    shared_counters = static_cast<char *>(share(counters_bytes() + 1));
  }
  if (ftruncate(output, 0) != 0 || lseek(output, 0, SEEK_SET) != 0) exit(2);
  ledger->count = ledger->written_count = 0;
  std::memset(shared_counters, 0, counters_bytes());
  pid_t child = fork();
  if (child < 0) {
    perror("fuzz: fork");
    exit(2);
  }
  if (child == 0) be_child(output, body);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  for (size_t i = 0; i < counters_bytes(); i++) {
    if (static_cast<unsigned char>(shared_counters[i]) > static_cast<unsigned char>(__start___sancov_cntrs[i]))
      __start___sancov_cntrs[i] = shared_counters[i];
  }
  std::string text = read_all(output), wrong = judge(status, text);
  if (wrong.empty()) return;
  fprintf(stderr, "%s", text.c_str());
  finding("%s", wrong.c_str());
}
