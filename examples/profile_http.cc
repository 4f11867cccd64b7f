// Heap profiles over a program's own HTTP port: pprof http://localhost:6060/debug/pprof/heap
// That is github.com/google/pprof: `go tool pprof` lacks names of C++.
//
// The function that makes the answer's body is all that is hakmem's; the server is the program's own.
//
//   c++ -std=c++17 profile_http.cc $(pkg-config --cflags --libs hakmem) && ./a.out [PORT]
#include <arpa/inet.h>
#include <hakmem/hakmem.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

// Empty where the profile has never been on.
static std::string heap_profile() {
  std::string body;
  auto append = [](void *to, const void *data, std::size_t bytes) -> int {
    static_cast<std::string *>(to)->append(static_cast<const char *>(data), bytes);
    return 0;
  };
  if (hakmem_profile_write(HAKMEM_PROFILE_ALL, HAKMEM_PROFILE_PROTO, append, &body) != 0) body.clear();
  return body;
}

int main(int argc, char **argv) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(argc > 1 ? std::atoi(argv[1]) : 6060));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (hakmem_profile_start(0) != 0 || bind(server, reinterpret_cast<sockaddr *>(&at), sizeof at) != 0 || listen(server, 8) != 0) return 1;
  for (int client; (client = accept(server, nullptr, nullptr)) >= 0; close(client)) {
    char request[1024];
    std::string line(request, static_cast<std::size_t>(std::max<ssize_t>(0, read(client, request, sizeof request))));
    bool found = line.rfind("GET /debug/pprof/heap ", 0) == 0;
    std::string answer = found ? "HTTP/1.0 200 OK\r\n\r\n" + heap_profile() : "HTTP/1.0 404 Not Found\r\n\r\n";
    for (std::size_t sent = 0; sent < answer.size();) {
      ssize_t n = send(client, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
      if (n < 0) break;
      sent += static_cast<std::size_t>(n);
    }
  }
}
