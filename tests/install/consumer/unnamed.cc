// Memory only through operator new and libc: the archive's malloc must serve both.
#include <cstdio>
#include <cstring>
#include <hakmem/hakmem.h>

int main() {
  char *line = nullptr;
  std::size_t room = 0;
  ssize_t length = getline(&line, &room, stdin);
  int *number = new int(1);
  char *copy = strdup("text");
  std::printf("read %d ours %d %d %d\n", static_cast<int>(length), hakmem_is_ours(line), hakmem_is_ours(number),
              hakmem_is_ours(copy));
  delete number;
}
