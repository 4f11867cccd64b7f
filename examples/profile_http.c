// Heap profiles over a program's own HTTP port: pprof http://localhost:6060/debug/pprof/heap
//
//   cc profile_http.c $(pkg-config --cflags --libs hakmem) && ./a.out [PORT]
#include <arpa/inet.h>
#include <errno.h>
#include <hakmem/hakmem.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// The profile comes in pieces; a socket takes what it has room for.
static int to_socket(void *socket, const void *data, size_t bytes) {
  for (const char *at = data; bytes > 0;) {
    ssize_t n = send(*(int *)socket, at, bytes, MSG_NOSIGNAL);
    if (n < 0) return errno;
    at += n;
    bytes -= (size_t)n;
  }
  return 0;
}

static int answer(int client) {
  static const char ok[] = "HTTP/1.0 200 OK\r\n\r\n", missing[] = "HTTP/1.0 404 Not Found\r\n\r\n", heap[] = "GET /debug/pprof/heap ";
  char request[1024];
  ssize_t n = read(client, request, sizeof request);
  if (n < (ssize_t)strlen(heap) || memcmp(request, heap, strlen(heap)) != 0) return to_socket(&client, missing, strlen(missing));
  int error = to_socket(&client, ok, strlen(ok));
  return error != 0 ? error : hakmem_profile_write(HAKMEM_PROFILE_ALL, HAKMEM_PROFILE_PROTO, to_socket, &client);
}

int main(int argc, char **argv) {
  int port = argc > 1 ? atoi(argv[1]) : 6060;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (hakmem_profile_start(0) != 0 || bind(server, (struct sockaddr *)&at, sizeof at) != 0 || listen(server, 8) != 0) return 1;
  for (int client; (client = accept(server, NULL, NULL)) >= 0; close(client)) answer(client);
}
