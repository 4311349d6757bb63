/* Writes down whom a process asks for, by name or address, beyond this machine: preloaded into
 * every process of a command, it sees what Python's audit hooks cannot, libraries in C. A line each
 * in the file that WATCHED_CALLS names: what was called, and for whom. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void write_down(const char *call, const char *whom) {
  const char *path = getenv("WATCHED_CALLS");
  char line[512];
  int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  int length = snprintf(line, sizeof line, "%s %s %s\n", program_invocation_short_name, call, whom);
  if (file < 0) return;
  if (write(file, line, length) != length) abort();
  close(file);
}

static void see_address(const char *call, const struct sockaddr *to) {
  char text[INET6_ADDRSTRLEN];
  if (to == NULL) return;
  if (to->sa_family == AF_INET) {
    const struct in_addr *v4 = &((const struct sockaddr_in *)to)->sin_addr;
    if (ntohl(v4->s_addr) >> 24 == 127 || v4->s_addr == INADDR_ANY) return;
    write_down(call, inet_ntop(AF_INET, v4, text, sizeof text));
  } else if (to->sa_family == AF_INET6) {
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)to)->sin6_addr;
    if (IN6_IS_ADDR_LOOPBACK(v6) || IN6_IS_ADDR_UNSPECIFIED(v6)) return;
    write_down(call, inet_ntop(AF_INET6, v6, text, sizeof text));
  }
}

static int is_here(const char *name) {
  return name == NULL || !strcmp(name, "localhost") || !strncmp(name, "127.", 4) || !strcmp(name, "::1");
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
  if (!is_here(name)) write_down("getaddrinfo", name);
  return REAL(getaddrinfo)(name, service, hints, found);
}

int gethostbyname_r(const char *name, struct hostent *into, char *buffer, size_t size,
                    struct hostent **found, int *error) {
  if (!is_here(name)) write_down("gethostbyname_r", name);
  return REAL(gethostbyname_r)(name, into, buffer, size, found, error);
}

int connect(int socket, const struct sockaddr *to, socklen_t length) {
  see_address("connect", to);
  return REAL(connect)(socket, to, length);
}

ssize_t sendto(int socket, const void *data, size_t size, int flags, const struct sockaddr *to,
               socklen_t length) {
  see_address("sendto", to);
  return REAL(sendto)(socket, data, size, flags, to, length);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
  see_address("sendmsg", (const struct sockaddr *)message->msg_name);
  return REAL(sendmsg)(socket, message, flags);
}
