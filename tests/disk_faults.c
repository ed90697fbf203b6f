/* Makes a disk fail: loaded before libc, it refuses changes below $FAULT_BELOW with the errno that
   the file $FAULT_FILE has, while it is there. With EIO, reads and syncs fail too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

static int fault(void) {
  char text[16] = {0};
  const char *file = getenv("FAULT_FILE");
  long fd = file ? syscall(SYS_openat, AT_FDCWD, file, O_RDONLY) : -1;
  if (fd < 0) return 0;
  syscall(SYS_read, fd, text, sizeof text - 1);
  syscall(SYS_close, fd);
  return atoi(text);
}

static int below(const char *path) {
  const char *folder = getenv("FAULT_BELOW");
  return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int fd_below(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return below(path);
}

static int refused(int is_below, int only_eio) {
  int number = is_below ? fault() : 0;
  if (!number || (only_eio && number != EIO)) return 0;
  errno = number;
  return 1;
}

/* A disk that fills up takes a part of a write, and nothing of the next. */
ssize_t write(int fd, const void *content, size_t size) {
  static int halves;
  int number = fd_below(fd) ? fault() : 0;
  if (!number) return REAL(write)(fd, content, size);
  if (number == ENOSPC && size > 1 && halves++ % 2 == 0) return REAL(write)(fd, content, size / 2);
  errno = number;
  return -1;
}

ssize_t read(int fd, void *content, size_t size) {
  return refused(fd_below(fd), 1) ? -1 : REAL(read)(fd, content, size);
}

int fsync(int fd) { return refused(fd_below(fd), 1) ? -1 : REAL(fsync)(fd); }

#define MODE(flags, mode)            \
  mode_t mode = 0;                   \
  if ((flags) & O_CREAT) {           \
    va_list rest;                    \
    va_start(rest, flags);           \
    mode = va_arg(rest, mode_t);     \
    va_end(rest);                    \
  }

int open(const char *path, int flags, ...) {
  MODE(flags, mode)
  if ((flags & O_CREAT) && refused(below(path), 0)) return -1;
  return REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  MODE(flags, mode)
  if ((flags & O_CREAT) && refused(below(path), 0)) return -1;
  return REAL(open64)(path, flags, mode);
}

int link(const char *from, const char *to) {
  return refused(below(to), 0) ? -1 : REAL(link)(from, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
  return refused(below(to), 0) ? -1 : REAL(linkat)(from_fd, from, to_fd, to, flags);
}

int rename(const char *from, const char *to) {
  return refused(below(to), 0) ? -1 : REAL(rename)(from, to);
}

int mkdir(const char *path, mode_t mode) {
  return refused(below(path), 0) ? -1 : REAL(mkdir)(path, mode);
}
