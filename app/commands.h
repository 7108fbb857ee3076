/* app/commands.h - one function per command; each returns the process's exit code: 0 done, 1 failure, 2 usage, 3 done with
 * error rows, 75 stopped and resumable. argv[0] is the command's name. */
#ifndef MB_APP_COMMANDS_H
#define MB_APP_COMMANDS_H

int cmd_run(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_version(void);

#endif
