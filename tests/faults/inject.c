/* Runs a program again and again, each time with another of its system calls failing: the first one, the second one, …
 * until a run makes no call that would have to fail. The program knows nothing of it; it has to end with status 0.
 *
 * A seccomp filter in the program hands the chosen calls to this process, which lets them through or answers with the
 * error. Calls are counted from the program's mark on (mark.h), or from the first reservation of address space, with
 * which the allocator starts; never after the program's second mark. Calls that are surely the loader's or libc's are
 * let through: mappings of files, pages made read-only.
 *
 * usage: inject --call NAME[,NAME…] --error NAME [--onward] [--from mark|start] [--preload FILE] -- PROGRAM [ARG…]
 * Status 0: every run ended well; 1: not so; 2: usage; 77: the system does not have this. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mark.h"
#include "rotation.h"

#define SKIPPED 77
#define SILENCE_MS 30000 /* a program that makes no call for so long hangs */
#define CALLS_MAX 8
#define BAD_RUNS_MAX 3

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

static const struct {
  const char *name;
  int number;
} known_calls[] = {
    {"mmap", SYS_mmap},     {"munmap", SYS_munmap}, {"mprotect", SYS_mprotect}, {"madvise", SYS_madvise},
    {"mremap", SYS_mremap}, {"mincore", SYS_mincore}, {"openat", SYS_openat},   {"read", SYS_read},
    {"write", SYS_write},   {"close", SYS_close},   {"fcntl", SYS_fcntl}, {"prctl", SYS_prctl},
};
#define KNOWN_CALLS (sizeof known_calls / sizeof known_calls[0])

static struct {
  int calls[CALLS_MAX];
  unsigned call_count;
  const char *call_names;
  int error;
  bool onward, from_start;
  const char *preload;
  char **command;
} options;

typedef struct run {
  unsigned nth;
  bool counting;
  unsigned calls;  /* counted so far */
  bool failed;     /* one of them was made to fail */
  const char *last; /* name of the last one */
  bool silent;
  int status; /* wait status */
} run;

/* --- options --- */

_Noreturn static void refuse(const char *option, const char *value, const char *why) {
  fprintf(stderr, "inject: %s %s: %s\n", option, value, why);
  exit(2);
}

_Noreturn static void usage(void) {
  fputs("usage: inject --call NAME[,NAME...] --error NAME [--onward] [--from mark|start] [--preload FILE]\n"
        "              -- PROGRAM [ARG...]\n",
        stderr);
  exit(2);
}

static int error_number(const char *name) {
  for (int e = 1; e < 134; e++) {
    const char *known = strerrorname_np(e);
    if (known != NULL && strcmp(known, name) == 0) return e;
  }
  refuse("--error", name, "no error of this system");
}

static void add_call(const char *list, const char *name, size_t length) {
  if (options.call_count == CALLS_MAX) refuse("--call", list, "too many calls");
  for (size_t i = 0; i < KNOWN_CALLS; i++) {
    if (strlen(known_calls[i].name) != length || memcmp(known_calls[i].name, name, length) != 0) continue;
    options.calls[options.call_count++] = known_calls[i].number;
    return;
  }
  refuse("--call", list, "not among the calls that can be made to fail");
}

static void parse_calls(const char *list) {
  options.call_names = list;
  for (const char *name = list;;) {
    size_t length = strcspn(name, ",");
    add_call(list, name, length);
    if (name[length] == '\0') return;
    name += length + 1;
  }
}

static void parse(int argc, char **argv) {
  static const struct option table[] = {
      {"call", required_argument, NULL, 'c'}, {"error", required_argument, NULL, 'e'},
      {"onward", no_argument, NULL, 'o'},     {"from", required_argument, NULL, 'f'},
      {"preload", required_argument, NULL, 'p'}, {0},
  };
  for (int c; (c = getopt_long(argc, argv, "+", table, NULL)) != -1;) {
    if (c == 'c') parse_calls(optarg);
    else if (c == 'e') options.error = error_number(optarg);
    else if (c == 'o') options.onward = true;
    else if (c == 'p') options.preload = optarg;
    else if (c != 'f') usage();
    else if (strcmp(optarg, "start") == 0) options.from_start = true;
    else if (strcmp(optarg, "mark") != 0) refuse("--from", optarg, "neither mark nor start");
  }
  options.command = argv + optind;
  if (options.call_count == 0 || options.error == 0 || options.command[0] == NULL) usage();
  const char *preload = options.preload;
  if (preload != NULL && access(preload, R_OK) != 0) refuse("--preload", preload, strerror(errno));
}

/* --- the program's side --- */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_ARGUMENT(i) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * (i))
#define UNLESS_EQUAL_SKIP(value, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (n))
#define ANSWER(action) BPF_STMT(BPF_RET | BPF_K, (action))

static unsigned append(struct sock_filter *filter, unsigned at, const struct sock_filter *more, size_t bytes) {
  memcpy(filter + at, more, bytes);
  return at + (unsigned)(bytes / sizeof *more);
}

/* Asks for the mark, the chosen calls and, from the start, for reservations; all else goes by. */
static unsigned make_filter(struct sock_filter *filter) {
  const struct sock_filter head[] = {
      LOAD(arch),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0),
      ANSWER(SECCOMP_RET_ALLOW),
      LOAD(nr),
      UNLESS_EQUAL_SKIP(FAULTS_MARK_CALL, 4),
      LOAD_ARGUMENT(0),
      UNLESS_EQUAL_SKIP(FAULTS_MARK, 1),
      ANSWER(SECCOMP_RET_USER_NOTIF),
      ANSWER(SECCOMP_RET_ALLOW),
  };
  const struct sock_filter reservation[] = {
      UNLESS_EQUAL_SKIP(SYS_mmap, 4),
      LOAD_ARGUMENT(3),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_NORESERVE, 0, 1),
      ANSWER(SECCOMP_RET_USER_NOTIF),
      LOAD(nr),
  };
  unsigned n = append(filter, 0, head, sizeof head);
  if (options.from_start) n = append(filter, n, reservation, sizeof reservation);
  for (unsigned i = 0; i < options.call_count; i++) {
    const struct sock_filter one[] = {
        UNLESS_EQUAL_SKIP((unsigned)options.calls[i], 1),
        ANSWER(SECCOMP_RET_USER_NOTIF),
    };
    n = append(filter, n, one, sizeof one);
  }
  const struct sock_filter tail[] = {ANSWER(SECCOMP_RET_ALLOW)};
  return append(filter, n, tail, sizeof tail);
}

/* One message with `number`, and the descriptor if it is not negative. */
static void send_descriptor(int channel, int number, int descriptor) {
  struct iovec part = {&number, sizeof number};
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = control.space;
    message.msg_controllen = sizeof control.space;
    struct cmsghdr *header = &control.header;
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  if (sendmsg(channel, &message, 0) < 0) _exit(126);
}

/* The descriptor, or -1 and *number as sent. */
static int receive_descriptor(int channel, int *number) {
  struct iovec part = {number, sizeof *number};
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
  *number = EPIPE;
  if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) <= 0 || message.msg_controllen == 0) return -1;
  int descriptor;
  memcpy(&descriptor, CMSG_DATA(&control.header), sizeof descriptor);
  return descriptor;
}

_Noreturn static void become_program(int channel) {
  if (options.preload != NULL) setenv("LD_PRELOAD", options.preload, 1);
  struct sock_filter filter[32 + 2 * CALLS_MAX];
  struct sock_fprog program = {.filter = filter};
  program.len = (unsigned short)make_filter(filter);
  int listener = -1;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
    listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  send_descriptor(channel, errno, listener);
  if (listener < 0) _exit(SKIPPED);
  execvp(options.command[0], options.command);
  perror(options.command[0]);
  _exit(127);
}

/* --- this side --- */

static const char *name_of(int number) {
  for (size_t i = 0; i < KNOWN_CALLS; i++) {
    if (known_calls[i].number == number) return known_calls[i].name;
  }
  return "?";
}

static bool chosen(const struct seccomp_data *call) {
  bool listed = false;
  for (unsigned i = 0; i < options.call_count; i++) listed = listed || options.calls[i] == call->nr;
  if (!listed) return false;
  if (call->nr == SYS_mmap) return (call->args[3] & MAP_ANONYMOUS) != 0;
  return call->nr != SYS_mprotect || call->args[2] != PROT_READ;
}

/* The error the call is to end with, 0: it is let through. */
static int decide(run *r, const struct seccomp_data *call) {
  if (call->nr == FAULTS_MARK_CALL) {
    r->counting = call->args[1] != 0;
    return 0;
  }
  if (options.from_start && r->calls == 0 && call->nr == SYS_mmap && (call->args[3] & MAP_NORESERVE) != 0)
    r->counting = true;
  if (!r->counting || !chosen(call)) return 0;
  unsigned at = ++r->calls;
  if (options.onward ? at < r->nth : at != r->nth) return 0;
  r->failed = true;
  r->last = name_of(call->nr);
  return options.error;
}

/* Answers one call. The kernel may know longer structures than these headers; it says how long. */
static void answer(int listener, run *r) {
  static union {
    struct seccomp_notif body;
    char room[1024];
  } request;
  memset(&request, 0, sizeof request);
  if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) return; /* the thread was killed meanwhile */
  static union {
    struct seccomp_notif_resp body;
    char room[1024];
  } response;
  memset(&response, 0, sizeof response);
  response.body.id = request.body.id;
  int error = decide(r, &request.body.data);
  if (error != 0)
    response.body.error = -error;
  else
    response.body.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

static void supervise(int listener, pid_t child, run *r) {
  struct pollfd waiting = {.fd = listener, .events = POLLIN};
  for (;;) {
    int ready = poll(&waiting, 1, SILENCE_MS);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      r->silent = true;
      kill(child, SIGKILL);
      return;
    }
    if ((waiting.revents & POLLIN) != 0)
      answer(listener, r);
    else
      return; /* nobody has the filter any more */
  }
}

static void run_once(run *r) {
  int channel[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0) {
    perror("inject: socketpair");
    exit(1);
  }
  fflush(NULL);
  pid_t child = fork();
  if (child < 0) {
    perror("inject: fork");
    exit(1);
  }
  if (child == 0) become_program(channel[1]);
  close(channel[1]);
  int error, listener = receive_descriptor(channel[0], &error);
  close(channel[0]);
  if (listener < 0) {
    waitpid(child, NULL, 0);
    printf("SKIPPED: seccomp user notification: %s\n", strerror(error));
    exit(SKIPPED);
  }
  supervise(listener, child, r);
  close(listener);
  while (waitpid(child, &r->status, 0) < 0 && errno == EINTR) {
  }
}

static void report_bad(const run *r) {
  char how[64] = "made no call for 30 s and was killed";
  if (!r->silent && WIFSIGNALED(r->status)) snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(r->status));
  if (!r->silent && WIFEXITED(r->status)) snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(r->status));
  printf("call %u%s, the last of them %s, with %s: the program %s\n", r->nth, options.onward ? " and all after it" : "",
         r->last == NULL ? "not made" : r->last, strerrorname_np(options.error), how);
}

int main(int argc, char **argv) {
  parse(argc, argv);
  unsigned nth = 1, runs = 0, bad = 0;
  for (;; nth++) {
    if (!rotation_has(nth)) continue;
    run r = {.nth = nth};
    run_once(&r);
    if (r.silent || r.status != 0) {
      report_bad(&r);
      if (++bad == BAD_RUNS_MAX) break;
    }
    if (!r.failed) break;
    runs++;
  }
  printf("%s with %s, %s: %u runs\n", options.call_names, strerrorname_np(options.error),
         options.onward ? "from the n-th on" : "the n-th alone", runs);
  if (runs == 0) puts("no such call was made: nothing has been tested");
  return bad == 0 && runs > 0 ? 0 : 1;
}
