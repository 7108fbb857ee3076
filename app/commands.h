/* app/commands.h - one function per command; each returns the process's exit code: 0 done, 1
 * failure, 2 usage, 3 done with error rows, 75 stopped and resumable. argv[0] is the command's
 * name. */
#ifndef MB_APP_COMMANDS_H
#define MB_APP_COMMANDS_H

#include <stdbool.h>

/* Whether this process says what is wrong with the command line, before any rank has met
 * another: rank 0 does. The others wait half a second here, since mpirun ends all as soon as one
 * has failed. */
bool app_speaks(void);

int cmd_run(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_pack(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_devices(int argc, char **argv);
int cmd_version(void);

#endif
