// A program that stays up after its work, as one does that holds a database: work_asked(PORT, WORK) works when
// somebody has connected and said so, answers with the string that WORK gives, and waits to be ended.
#pragma once
#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

template <class Work> [[noreturn]] void work_asked(const char *port, Work work) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(atoi(port)));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, reinterpret_cast<sockaddr *>(&at), sizeof at) != 0 || listen(listener, 9) != 0) {
        perror("listen");
        exit(1);
    }
    for (;;) {
        int client = accept(listener, nullptr, nullptr);
        char said;
        // Whoever only looks whether the port is open says nothing.
        if (client >= 0 && read(client, &said, 1) == 1) dprintf(client, "%s\n", work().c_str());
        if (client >= 0) close(client);
    }
}
