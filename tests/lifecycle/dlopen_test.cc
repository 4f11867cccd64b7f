/* The library loaded at run time into a program that runs on glibc's malloc: its thread-local storage fits what glibc
 * keeps spare, existing and new threads can use it, and it stays when it is closed, threads inside it or not. And a plugin that is loaded and
 * unloaded a thousand times under the preloaded allocator. LIFECYCLE_LIBRARY and LIFECYCLE_PLUGIN name the files. */
#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

const char *file_named_by(const char *variable) {
  const char *path = std::getenv(variable);
  if (path == nullptr) std::abort();
  return path;
}

/* Size of the TLS segment in an ELF file, 0 if it has none. */
size_t tls_bytes(const char *path) {
  std::ifstream file(path, std::ios::binary);
  ElfW(Ehdr) header;
  if (!file.read(reinterpret_cast<char *>(&header), sizeof header)) std::abort();
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; i < header.e_phnum; i++) {
    ElfW(Phdr) segment;
    if (!file.read(reinterpret_cast<char *>(&segment), sizeof segment)) std::abort();
    if (segment.p_type == PT_TLS) return segment.p_memsz;
  }
  return 0;
}

/* glibc keeps 1,664 bytes for libraries that dlopen brings and whose thread-local variables have fixed places: all versions do by default, old
 * ones as a constant, those since 2.32 as a sum of tunables. The allocator may take this many of them, a pointer for each code of a
 * span and little else; what glibc itself counts for others, 512, is left to them, and half as much again. */
constexpr size_t kSpareStaticTls = 832;

bool loaded(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

struct Functions {
  void *(*malloc)(size_t);
  void (*free)(void *);
  bool (*is_ours)(const void *);
  size_t (*heap_check)();
};

Functions functions_of(void *handle) {
  auto find = [handle](const char *name) {
    void *p = dlsym(handle, name);
    if (p == nullptr) std::abort();
    return p;
  };
  return {reinterpret_cast<void *(*)(size_t)>(find("hakmem_malloc")), reinterpret_cast<void (*)(void *)>(find("hakmem_free")),
          reinterpret_cast<bool (*)(const void *)>(find("hakmem_is_ours")),
          reinterpret_cast<size_t (*)()>(find("hakmem_heap_check"))};
}

bool use(const Functions &f) {
  std::vector<unsigned char *> blocks;
  for (size_t i = 0; i < 3000; i++) {
    size_t size = 1 + i * 7 % 5000;
    auto *p = static_cast<unsigned char *>(f.malloc(size));
    if (p == nullptr || !f.is_ours(p)) return false;
    std::memset(p, static_cast<int>(i), size);
    blocks.push_back(p);
  }
  for (size_t i = 0; i < blocks.size(); i++) {
    if (blocks[i][0] != static_cast<unsigned char>(i)) return false;
    f.free(blocks[i]);
  }
  return true;
}

/* A thread that exists before the library is loaded and uses it after. */
class ExistingThread {
 public:
  ExistingThread() : thread_([this] { run(); }) {}
  bool use_now(const Functions &f) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      functions_ = &f;
    }
    changed_.notify_all();
    thread_.join();
    return right_;
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return functions_ != nullptr; });
    right_ = use(*functions_);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  const Functions *functions_ = nullptr;
  bool right_ = false;
  std::thread thread_;
};

TEST(Dlopen, StaticTlsFits) {
  size_t bytes = tls_bytes(file_named_by("LIFECYCLE_LIBRARY"));
  std::printf("TLS segment: %zu bytes; at most %zu of what glibc keeps for libraries loaded by dlopen\n", bytes, kSpareStaticTls);
  RecordProperty("tls_bytes", static_cast<int>(bytes));
  EXPECT_GT(bytes, 0u);
  EXPECT_LE(bytes, kSpareStaticTls);
}

TEST(Dlopen, WorksInExistingAndNewThreadsAndStays) {
  const char *path = file_named_by("LIFECYCLE_LIBRARY");
  ASSERT_FALSE(loaded(path)) << "this test is for a program that began with another malloc";
  std::vector<std::unique_ptr<ExistingThread>> existing;
  for (int i = 0; i < 4; i++) existing.emplace_back(new ExistingThread);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  Functions f = functions_of(handle);
  EXPECT_TRUE(use(f));
  for (auto &t : existing) EXPECT_TRUE(t->use_now(f));
  for (int i = 0; i < 20; i++) {
    bool right = false;
    std::thread([&] { right = use(f); }).join();
    EXPECT_TRUE(right);
  }
  /* The program's own malloc is still glibc's. */
  void *p = std::malloc(100);
  EXPECT_FALSE(f.is_ours(p));
  std::free(p);
  void *kept = f.malloc(100);
  EXPECT_EQ(0, dlclose(handle));
  EXPECT_TRUE(loaded(path)) << "a thread may still hold a block of it";
  EXPECT_TRUE(f.is_ours(kept));
  f.free(kept);
  EXPECT_TRUE(use(f));
  EXPECT_EQ(0u, f.heap_check());
}

/* Closed while threads use it: they go on, end (their end runs code of the library), and later ones begin. DEEPBIND: the
 * library prefers its own malloc, the program keeps glibc's. */
TEST(Closed, WithThreadsAlive) {
  const char *path = file_named_by("LIFECYCLE_LIBRARY");
  ASSERT_FALSE(loaded(path)) << "this test is for a program that began with another malloc";
  for (int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND, RTLD_LAZY | RTLD_LOCAL, RTLD_NOW | RTLD_GLOBAL}) {
    for (int repeat = 0; repeat < 7; repeat++) {
      void *handle = dlopen(path, flags);
      ASSERT_NE(handle, nullptr) << dlerror();
      Functions f = functions_of(handle);
      std::atomic<int> busy{0}, wrong{0};
      std::atomic<bool> closed{false};
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; t++) {
        threads.emplace_back([&] {
          wrong += !use(f);
          busy++;
          while (!closed) wrong += !use(f);
          wrong += !use(f);
        });
      }
      while (busy < 4) std::this_thread::yield();
      EXPECT_EQ(0, dlclose(handle));
      closed = true;
      for (auto &t : threads) t.join();
      EXPECT_EQ(wrong, 0);
      bool right = false;
      std::thread([&] { right = use(f); }).join();
      EXPECT_TRUE(right);
      EXPECT_EQ(0u, f.heap_check());
      void *p = std::malloc(100);
      EXPECT_FALSE(f.is_ours(p));
      std::free(p);
    }
  }
}

/* Under preload: the plugin frees what the program allocated, and the other way round. */
TEST(Plugin, LoadedAndUnloadedAThousandTimes) {
  const char *path = file_named_by("LIFECYCLE_PLUGIN");
  for (int i = 0; i < 1000; i++) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    auto exchange = reinterpret_cast<void *(*)(void *, size_t)>(dlsym(handle, "plugin_exchange"));
    ASSERT_NE(exchange, nullptr);
    void *theirs = exchange(std::malloc(300), 200);
    std::thread([&] { std::free(exchange(theirs, 100)); }).join();
    ASSERT_EQ(0, dlclose(handle));
  }
  auto check = reinterpret_cast<size_t (*)()>(dlsym(RTLD_DEFAULT, "hakmem_heap_check"));
  ASSERT_NE(check, nullptr) << "the allocator under test is not loaded";
  EXPECT_EQ(0u, check());
}

}  // namespace
