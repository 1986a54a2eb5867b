/* Runs a compiler and notes how much memory it took at most, as a line "KIBIBYTES OBJECT" of compile_memory.log in the
 * working folder, which is the build's. ./dev puts it in front of every compile.
 *
 *   peak_memory g++ ... -o OBJECT -c SOURCE
 */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* One write, so that lines of compiles that end together stay whole. */
static void note(long kibibytes, const char* object) {
  char line[4096];
  const int length = snprintf(line, sizeof line, "%ld %s\n", kibibytes, object);
  const int file = open("compile_memory.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  if (length < (int)sizeof line && write(file, line, (size_t)length) < 0) perror("compile_memory.log");
  close(file);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const pid_t compiler = fork();
  if (compiler == 0) {
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    _exit(127);
  }
  int status = 0;
  struct rusage used; /* of the driver and of what it waited for, the compiler proper */
  if (compiler < 0 || wait4(compiler, &status, 0, &used) < 0) {
    perror("peak_memory");
    return 1;
  }
  const char* object = NULL;
  int compiles = 0;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "-c") == 0) compiles = 1;
    if (strcmp(argv[i], "-o") == 0) object = argv[i + 1];
  }
  if (compiles && object != NULL) note(used.ru_maxrss, object);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
